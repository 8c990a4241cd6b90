"""The command line: flags and environment variables to `Options`, errors to exit codes; `app` is called with a
`Stopping` as its `obj`.
"""

import math
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from swe_rollout.errors import StartupError
from swe_rollout.prepare.options import EVAL_DATASET, PINNED, TRAIN_DATASET, Options, UsageError, source
from swe_rollout.prepare.plan import GIB, BuildOptions
from swe_rollout.prepare.stopping import Stopping

NAME = "setup_r2e_data_and_sifs.sh"
_LOCK = Path(__file__).parents[2] / "requirements.lock"
_USUAL = BuildOptions()

_HELP = f"""
Make everything that the agent server reads: the parquet files of the train and eval tasks, Python wheels for nodes
without a network, and one SIF per Docker image that the tasks name.

It can be stopped at any instant and run again: what is there and whole is kept. Several runs share the work. A first
try takes minutes with --limit 4; everything takes a day and about 2 TB.

Needed: the variables MINI_SWE_AGENT_VENV, R2E_DATA_PATH, R2E_SIF_DIR; the commands hf, duckdb, jq, apptainer. A proxy
is set for this command alone: http_proxy=URL https_proxy=URL bash {NAME}. Also heard: HF_TOKEN, HF_ENDPOINT,
APPTAINER_TMPDIR, APPTAINER_CACHEDIR.

Exit code: 0 all is there; 1 something is missing or failed, and is named; 2 the command line is wrong; 129, 130 or 143
stopped by a signal.
"""


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command(help=_HELP, context_settings={"help_option_names": ["-h", "--help"]})
def setup(
    context: typer.Context,
    data_path: Annotated[
        Path, typer.Option(envvar="R2E_DATA_PATH", help="Folder for the parquet files and the wheels.")
    ],
    sif_dir: Annotated[Path, typer.Option(envvar="R2E_SIF_DIR", help="Folder for the SIFs.")],
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="At most this many images; train and eval take turns."),
    ] = None,
    repos: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Only images of these repos: pandas, django/django."),
    ] = None,
    ids: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Only images of the tasks that this file names, an id a line: REPO__FIRST-12-DIGITS-OF-COMMIT or"
            " SWE-bench's instance_id.",
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
        ),
    ] = None,
    train_revision: Annotated[
        str | None,
        typer.Option(
            envvar="R2E_TRAIN_REVISION",
            help="Commit, tag or branch; a branch is looked up once. [default: a pinned commit for R2E-Gym's own"
            " datasets, else main]",
        ),
    ] = None,
    train_split: Annotated[
        str | None,
        typer.Option(envvar="R2E_TRAIN_SPLIT", help="[default: train]"),
    ] = None,
    eval_dataset: Annotated[
        str | None,
        typer.Option(
            envvar="R2E_EVAL_DATASET",
            help=f"As --train-dataset; an empty one for no eval data. [default: {EVAL_DATASET}]",
        ),
    ] = None,
    eval_revision: Annotated[str | None, typer.Option(envvar="R2E_EVAL_REVISION", help="[default: main]")] = None,
    eval_split: Annotated[str | None, typer.Option(envvar="R2E_EVAL_SPLIT", help="[default: test]")] = None,
    wheels_requirements: Annotated[
        Path,
        typer.Option(
            envvar="R2E_WHEELS_REQUIREMENTS",
            help="What wheels are fetched for. [default: requirements.lock of the checkout]",
            show_default=False,
        ),
    ] = _LOCK,
    jobs: Annotated[
        int,
        typer.Option(envvar="R2E_SETUP_MAX_JOBS", min=1, help="Images built at once."),
    ] = _USUAL.max_jobs,
    start_interval: Annotated[
        float,
        typer.Option(
            envvar="R2E_SETUP_START_INTERVAL",
            min=0,
            callback=_finite,
            help="Seconds between the starts of two builds.",
        ),
    ] = _USUAL.start_interval,
    min_free_gb: Annotated[
        float,
        typer.Option(
            envvar="R2E_SETUP_MIN_FREE_GB",
            min=0,
            callback=_finite,
            help="GiB that stay free: with less, no build is begun.",
        ),
    ] = _USUAL.min_free_bytes / GIB,
    registry_mirror: Annotated[
        str | None,
        typer.Option(
            envvar="R2E_REGISTRY_MIRROR",
            help="Where images are pulled from instead of docker.io: HOST[:PORT][/PREFIX], or http://HOST:PORT[/PREFIX]"
            " for plain HTTP.",
        ),
    ] = None,
    attempts: Annotated[
        int,
        typer.Option(
            envvar="R2E_SETUP_ATTEMPTS", min=1, help="Tries of a download or a build before it counts as failed."
        ),
    ] = _USUAL.attempts,
    first_pause: Annotated[
        float,
        typer.Option(
            envvar="R2E_SETUP_FIRST_PAUSE",
            min=0,
            callback=_finite,
            help="Seconds before the second try; doubled for each further one, and as long as a Retry-After asks.",
        ),
    ] = _USUAL.first_pause,
) -> None:
    stopping: Stopping = context.obj
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
            repos=_names(repos),
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
        _refuse_strangers(context)
        # What is only asked for help, or asked wrongly, answers at once.
        with stopping.raising():
            from swe_rollout.prepare import flow
        if options.prune:
            code = flow.prune(options, console, stopping)
        elif options.check:
            code = flow.check(options, console, stopping)
        else:
            code = flow.prepare(options, console, stopping)
    except UsageError as error:
        typer.echo(f"{NAME}: {error}", err=True)
        code = 2
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else error
        typer.echo(f"{NAME}: {what}", err=True)
        code = 1
    except StartupError as error:
        typer.echo(f"{NAME}: {error}", err=True)
        code = 1
    raise typer.Exit(code)


def _names(repos: str | None) -> tuple[str, ...]:
    names = tuple(repo.strip() for repo in (repos or "").split(",") if repo.strip())
    if repos is not None and not names:
        raise UsageError("--repos names no repo; without the flag the images of all are built")
    return names


def _empty_too(flag: str | None, variable: str) -> str | None:
    """The parser takes an empty variable for one that is not set."""
    return "" if flag is None and os.environ.get(variable) == "" else flag


def _refuse_strangers(context: typer.Context) -> None:
    """A mistyped variable would be as good as none."""
    known = sorted({str(option.envvar) for option in context.command.params if option.envvar})
    prefix = "R2E_SETUP_"
    if strangers := [name for name in sorted(os.environ) if name.startswith(prefix) and name not in known]:
        there_are = ", ".join(name for name in known if name.startswith(prefix))
        raise UsageError(f"{', '.join(strangers)} is no variable of this program; there are: {there_are}")
