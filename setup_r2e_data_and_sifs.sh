#!/usr/bin/env bash
# One-time setup: the parquet data, Python wheels for nodes without a network, and one SIF per Docker image that the
# data names. It can be stopped at any instant and run again; what is there and whole is kept.
#
#   setup_r2e_data_and_sifs.sh [--limit N] [--repos A,B] [--ids FILE]    fetch and build, all of it or a part
#   setup_r2e_data_and_sifs.sh --check                                   look only; names what is missing or damaged
#   setup_r2e_data_and_sifs.sh --prune [--yes]                           list SIFs that no row needs; remove them
#   setup_r2e_data_and_sifs.sh --help                                    every option, once the venv is there
#
# Needed variables:
#   MINI_SWE_AGENT_VENV   virtual environment of the agent server; its bin folder is searched for commands first
#   R2E_DATA_PATH         folder for the parquet data and the wheels
#   R2E_SIF_DIR           folder for the SIF images
# Needed commands: hf, duckdb, jq (agent_client.sh needs it on this machine), apptainer
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=setup/require.sh
source "$here/setup/require.sh"

# Whatever of these is missing, it is told by name; a module is the package's name unless written module:package.
MODULES='huggingface_hub oras pip pyarrow rich tenacity typer typing_extensions:typing-extensions'

die() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
    exit 1
}

# Prints the packages of MODULES that the venv's Python does not find.
missing_packages() {
    "$python" - "$MODULES" <<'PYTHON'
import importlib.util
import sys

wanted = dict((module + ":" + module).split(":")[:2] for module in sys.argv[1].split())
print(*(package for module, package in wanted.items() if importlib.util.find_spec(module) is None))
PYTHON
}

run() { PYTHONSAFEPATH=1 PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH} exec "$1" -m swe_rollout.prepare "${@:2}"; }

help() {
    local candidate
    for candidate in ${MINI_SWE_AGENT_VENV:+"$MINI_SWE_AGENT_VENV/bin/python"} "$here/.venv/bin/python"; do
        if "$candidate" -c 'import rich, typer' 2>/dev/null; then
            run "$candidate" --help
        fi
    done
    sed -n '2,/^set /s/^# \{0,1\}//p' "$here/${BASH_SOURCE[0]##*/}"
    exit
}

for word in "$@"; do
    [[ $word != --help && $word != -h ]] || help
done

venv=${MINI_SWE_AGENT_VENV:-}
[[ -z $venv || $venv == /* ]] || venv=$PWD/$venv
python=$venv/bin/python
PATH=${venv:+$venv/bin:}$PATH
into="uv pip install --python ${venv:-\$MINI_SWE_AGENT_VENV}/bin/python"
how_to_get=(
    [MINI_SWE_AGENT_VENV]="export MINI_SWE_AGENT_VENV=FOLDER, made with: uv venv FOLDER && uv pip install --python FOLDER/bin/python --require-hashes -r $here/requirements.lock"
    [R2E_DATA_PATH]="export R2E_DATA_PATH=FOLDER for the parquet data (some GB)"
    [R2E_SIF_DIR]="export R2E_SIF_DIR=FOLDER for the images (about half a GB each)"
    [hf]="$into huggingface_hub"
    [duckdb]="$into duckdb-cli, or: curl https://install.duckdb.org | sh"
    [jq]="apt-get install jq"
    [apptainer]="make setup (in $here), or https://apptainer.org/docs/admin/main/installation.html"
)
[[ -z ${MINI_SWE_AGENT_VENV:-} || -x $python ]] ||
    die "MINI_SWE_AGENT_VENV=$MINI_SWE_AGENT_VENV is not a virtual environment: it has no bin/python"
require "MINI_SWE_AGENT_VENV R2E_DATA_PATH R2E_SIF_DIR" "hf duckdb jq apptainer"
lacking=$(missing_packages) || die "$python does not run; make the virtual environment anew"
[[ -z $lacking ]] || die "$venv lacks $lacking: $into $lacking"

export MINI_SWE_AGENT_VENV=$venv PATH
run "$python" "$@"
