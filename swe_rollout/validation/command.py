"""`agent_server.py validate` and `agent_server.py rescore`: flags, signals, exit codes."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from swe_rollout.assembly import Workshop, open_workshop
from swe_rollout.cancellation import Cancellation
from swe_rollout.errors import Cancelled
from swe_rollout.session import MODES
from swe_rollout.settings import Parser, Settings, add_flags, settings_from
from swe_rollout.validation.flow import Plan, validate
from swe_rollout.validation.rescore import find_sessions, rescore
from swe_rollout.validation.stopping import Stopping

_SETTINGS = (
    *("r2e_data_path", "r2e_sif_dir", "work_dir", "tmp_dir", "config", "train_concurrency", "eval_concurrency"),
    *("reward_concurrency", "confinement", "sandbox_user"),
)
"""Those that matter here; a server's other flags and variables are taken and do nothing."""

_VALIDATE = """\
Find out which rows can be trusted, without a model and by the server's own judge. For each row:

  noop    the hidden tests on the untouched tree must give 0.0
  gold    the row's own solution must give 1.0
  replay  the same edit, made through the agent's command channel and submitted, must give 1.0

It can be stopped or killed at any instant; the same command goes on. A row is checked again when the row, its SIF or
the configuration has changed, or when it was an error. A server may run meanwhile.

Exit code: 0 all rows are valid; 1 some are not, or could not be checked; 2 wrong usage; 128 + number of a signal."""
_RESCORE = """\
Judge the stored patches of sessions again, each in a fresh sandbox, and print what changed. Nothing is written.
Sessions that were never judged are skipped. What git ignores is in no stored patch.

Exit code: 0 all as before; 1 something changed or could not be judged; 2 wrong usage; 128 + number of a signal."""


def run_validate(argv: Sequence[str]) -> int:
    """The command line of `validate`; the exit code. Raises `StartupError` and `SystemExit` for the help."""
    parser = _parser("validate", _VALIDATE)
    own = parser.add_argument_group("which rows, how often, where to")
    own.add_argument("--mode", choices=MODES, help="only rows of this mode (default: all modes with data)")
    own.add_argument("--ids", type=Path, metavar="FILE", help="only the rows whose task ids it names, one a line")
    own.add_argument("--limit", type=_positive, metavar="N", help="only the first N rows of each mode")
    own.add_argument(
        "--repeat",
        type=_positive,
        default=1,
        metavar="K",
        help="each kind of run K times (default 1); flaky rows are found by a K above 1, best 3 to 5",
    )
    own.add_argument("--output", type=Path, metavar="DIR", help="results, logs, manifest (default WORK_DIR/validation)")
    own.add_argument("--again", action="store_true", help="forget the results in DIR and start anew")
    given = vars(parser.parse_args(argv))
    names = ("mode", "ids", "limit", "repeat", "output", "again")
    mode, ids, limit, repeat, output, again = (given.pop(name) for name in names)
    settings = settings_from(given)
    if mode:
        others = tuple(f"data.{other}=" for other in MODES if other != mode)
        settings = settings.model_copy(update={"config": (*settings.config, *others)})
    folder = (output or settings.work_dir / "validation").expanduser().absolute()
    plan = Plan(folder, ids, limit, repeat, again)

    return _run(settings, lambda shop, console, cancellation: validate(shop, plan, console, cancellation).all_valid)


def run_rescore(argv: Sequence[str]) -> int:
    """The command line of `rescore`; the exit code. Raises `StartupError` and `SystemExit` for the help."""
    parser = _parser("rescore", _RESCORE)
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="DIR", help="a session's folder, or any folder above some"
    )
    given = vars(parser.parse_args(argv))
    folders = given.pop("folders")
    settings = settings_from(given)
    sessions = find_sessions(folders)
    return _run(settings, lambda shop, console, cancellation: rescore(shop, sessions, console, cancellation))


def _run(settings: Settings, work: Callable[[Workshop, Console, Cancellation], bool]) -> int:
    """The exit code of a command whose `work` tells whether all is well."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    shop = open_workshop(settings)
    try:
        cancellation = Cancellation()
        stopping = Stopping(cancellation)
        try:
            return 0 if work(shop, console, cancellation) else 1
        except Cancelled:
            console.print("stopped; run the same command to go on")
            return stopping.exit_code or 1
        except OSError as error:
            print(f"agent_server.py: {error}; run the same command to go on", file=sys.stderr)
            return 1
    finally:
        shop.close()


def _parser(command: str, description: str) -> argparse.ArgumentParser:
    parser = Parser(
        prog=f"agent_server.py {command}",
        description=description,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(
        parser.add_argument_group(
            "settings",
            "The server's own; a flag beats its variable. Those not listed change nothing here.",
        ),
        _SETTINGS,
    )
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)
