"""The command line: flags and environment variables to `Options`, errors to exit codes."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from swe_rollout.errors import StartupError
from swe_rollout.prepare.faults import Stopped
from swe_rollout.prepare.flow import check as check_all
from swe_rollout.prepare.flow import prepare
from swe_rollout.prepare.flow import prune as prune_sifs
from swe_rollout.prepare.options import EVAL_DATASET, PINNED, TRAIN_DATASET, Options, UsageError, source
from swe_rollout.prepare.plan import GIB, BuildOptions
from swe_rollout.prepare.stopping import Stopping

NAME = "setup_r2e_data_and_sifs.sh"
_LOCK = Path(__file__).parents[2] / "requirements.lock"
_USUAL = BuildOptions()
_SELECTION, _DATA, _BUILDING = "Which images", "Which data", "Fetching and building"

_HELP = f"""
Make everything that the agent server reads: the parquet files of the train and eval tasks, Python wheels for nodes
without a network, and one SIF per Docker image that the tasks name.

It can be stopped at any instant and run again: what is there and whole is kept. Several runs share the work. A first
try takes minutes with --limit 4; everything takes a day and about 2 TB.

Needed: the variables MINI_SWE_AGENT_VENV, R2E_DATA_PATH, R2E_SIF_DIR; the commands hf, duckdb, jq, apptainer. A proxy
is set for this command alone: http_proxy=URL https_proxy=URL bash {NAME}. Also heard: HF_TOKEN, HF_ENDPOINT,
APPTAINER_TMPDIR.

Exit code: 0 all is there; 1 something failed and is named; 2 the command or the environment is wrong; 129, 130 or 143
stopped by a signal.
"""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
def setup(
    data_path: Annotated[
        Path, typer.Option(envvar="R2E_DATA_PATH", help="Folder for the parquet files and the wheels.")
    ],
    sif_dir: Annotated[Path, typer.Option(envvar="R2E_SIF_DIR", help="Folder for the SIFs.")],
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="At most this many images; train and eval take turns.", rich_help_panel=_SELECTION),
    ] = None,
    repos: Annotated[
        str,
        typer.Option(
            metavar="A,B", help="Only images of these repos: pandas, django/django.", rich_help_panel=_SELECTION
        ),
    ] = "",
    ids: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Only images of the tasks that this file names, an id a line: REPO__FIRST-12-DIGITS-OF-COMMIT or"
            " SWE-bench's instance_id.",
            rich_help_panel=_SELECTION,
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Look only: name what is missing or damaged, fetch and build nothing."),
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="List the SIFs that no row of any parquet file needs.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --prune: remove them.")] = False,
    train_dataset: Annotated[
        str | None,
        typer.Option(
            envvar="R2E_TRAIN_DATASET",
            help=f"OWNER/NAME on the hub; an empty one for no train data. Also tried: {', '.join(list(PINNED)[1:])}."
            f" [default: {TRAIN_DATASET}]",
            rich_help_panel=_DATA,
        ),
    ] = None,
    train_revision: Annotated[
        str | None,
        typer.Option(
            envvar="R2E_TRAIN_REVISION",
            help="Commit, tag or branch; a branch is looked up once. [default: a pinned commit for R2E-Gym's own"
            " datasets, else main]",
            rich_help_panel=_DATA,
        ),
    ] = None,
    train_split: Annotated[
        str | None,
        typer.Option(envvar="R2E_TRAIN_SPLIT", help="[default: train]", rich_help_panel=_DATA),
    ] = None,
    eval_dataset: Annotated[
        str | None,
        typer.Option(
            envvar="R2E_EVAL_DATASET",
            help=f"As --train-dataset; an empty one for no eval data. [default: {EVAL_DATASET}]",
            rich_help_panel=_DATA,
        ),
    ] = None,
    eval_revision: Annotated[
        str | None, typer.Option(envvar="R2E_EVAL_REVISION", help="[default: main]", rich_help_panel=_DATA)
    ] = None,
    eval_split: Annotated[
        str | None, typer.Option(envvar="R2E_EVAL_SPLIT", help="[default: test]", rich_help_panel=_DATA)
    ] = None,
    wheels_requirements: Annotated[
        Path,
        typer.Option(
            envvar="R2E_WHEELS_REQUIREMENTS",
            help="What wheels are fetched for. [default: requirements.lock of the checkout]",
            show_default=False,
            rich_help_panel=_DATA,
        ),
    ] = _LOCK,
    jobs: Annotated[
        int,
        typer.Option(envvar="R2E_SETUP_MAX_JOBS", min=1, help="Images built at once.", rich_help_panel=_BUILDING),
    ] = _USUAL.max_jobs,
    start_interval: Annotated[
        float,
        typer.Option(
            envvar="R2E_SETUP_START_INTERVAL",
            min=0,
            help="Seconds between the starts of two builds.",
            rich_help_panel=_BUILDING,
        ),
    ] = _USUAL.start_interval,
    min_free_gb: Annotated[
        float,
        typer.Option(
            envvar="R2E_SETUP_MIN_FREE_GB",
            min=0,
            help="GiB that stay free: with less, no build is begun.",
            rich_help_panel=_BUILDING,
        ),
    ] = _USUAL.min_free_bytes / GIB,
    registry_mirror: Annotated[
        str | None,
        typer.Option(
            envvar="R2E_REGISTRY_MIRROR",
            help="Where images are pulled from instead of docker.io: HOST[:PORT][/PREFIX], or http://HOST:PORT[/PREFIX]"
            " for plain HTTP.",
            rich_help_panel=_BUILDING,
        ),
    ] = None,
    attempts: Annotated[
        int,
        typer.Option(
            envvar="R2E_SETUP_ATTEMPTS",
            min=1,
            help="Tries of a download or a build before it counts as failed.",
            rich_help_panel=_BUILDING,
        ),
    ] = _USUAL.attempts,
    first_pause: Annotated[
        float,
        typer.Option(
            envvar="R2E_SETUP_FIRST_PAUSE",
            min=0,
            help="Seconds before the second try; doubled for each further one, and as long as a Retry-After asks.",
            rich_help_panel=_BUILDING,
        ),
    ] = _USUAL.first_pause,
) -> None:
    stopping = Stopping()
    stopping.install()
    # Paths and names are printed as they are: not cut at the width of a screen, not read as markup.
    console = Console(soft_wrap=True, markup=False, highlight=False)
    try:
        options = Options(
            data_dir=data_path.absolute(),
            sif_dir=sif_dir.absolute(),
            sources=tuple(
                each
                for each in (
                    source("train", _empty_too(train_dataset, "R2E_TRAIN_DATASET"), train_revision, train_split),
                    source("eval", _empty_too(eval_dataset, "R2E_EVAL_DATASET"), eval_revision, eval_split),
                )
                if each
            ),
            requirements=wheels_requirements,
            limit=limit,
            repos=tuple(repo.strip() for repo in repos.split(",") if repo.strip()),
            ids=ids,
            check=check,
            prune=prune,
            yes=yes,
            build=BuildOptions(
                max_jobs=jobs,
                start_interval=start_interval,
                min_free_bytes=int(min_free_gb * GIB),
                registry_mirror=registry_mirror,
                attempts=attempts,
                first_pause=first_pause,
            ),
        )
        if options.prune:
            code = prune_sifs(options, console)
        elif options.check:
            code = check_all(options, console, stopping)
        else:
            code = prepare(options, console, stopping)
    except Stopped:
        _say("stopped; run the same command to go on")
        code = stopping.exit_code
    except UsageError as error:
        _say(str(error))
        code = 2
    except (StartupError, OSError) as error:
        _say(str(error))
        code = 1
    raise typer.Exit(code)


def _empty_too(flag: str | None, variable: str) -> str | None:
    """The parser takes an empty variable for one that is not set."""
    return "" if flag is None and os.environ.get(variable) == "" else flag


def _say(words: str) -> None:
    print(f"{NAME}: {words}", file=sys.stderr)


if __name__ == "__main__":
    app(prog_name=NAME)
