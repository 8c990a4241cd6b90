SHELL := /bin/bash
PYTHON_TOOLS := .venv/bin
UV = $(shell . setup/common.sh && echo $$cache)/uv/bin/uv
COMPILE = UV_PYTHON_DOWNLOADS=never $(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url
SCRIPTS = $(shell find . -name '*.sh' -not -path './.*') .ci/run

.DEFAULT_GOAL := help
.PHONY: help setup samples demo test soak bench lint lock clean

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

setup: ## Install what this machine lacks; a second run does nothing
	@setup/setup.sh

samples: setup ## Build the sample tasks and their images
	@$(PYTHON_TOOLS)/python -m data.build

demo: samples ## Run real sessions on the sample tasks with scripted policies, no GPU
	@setup/demo.sh

test: samples ## Run the whole test suite
	$(PYTHON_TOOLS)/python -m pytest -n 2 --dist loadfile

soak: samples ## A quarter of an hour of chaos with real sessions: faults everywhere, then the books
	$(PYTHON_TOOLS)/python -m bench.chaos --seconds 900 --kill-every 60

bench: samples ## Measure the server on this machine
	$(PYTHON_TOOLS)/python -m bench

lint: setup ## Check style, types and shell scripts
	$(PYTHON_TOOLS)/ruff check
	$(PYTHON_TOOLS)/ruff format --check
	$(PYTHON_TOOLS)/mypy
	shellcheck $(SCRIPTS)

lock: setup ## Renew the locks after a change in pyproject.toml
	$(COMPILE) --group dev --python-version 3.10 pyproject.toml -o requirements.lock
	echo uv | $(COMPILE) --no-header --python-version 3.10 - -o setup/uv.txt

clean: ## Remove .venv and the tools' caches; samples and uv stay in the cache folder
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
