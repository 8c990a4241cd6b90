"""`python -m swe_rollout.prepare`: the command line, which a signal may end at any instant."""

import sys

from swe_rollout.prepare.faults import Stopped
from swe_rollout.prepare.stopping import Stopping


def main() -> None:
    """Leaves with the exit code."""
    stopping = Stopping()
    stopping.install()
    try:
        with stopping.raising():
            from swe_rollout.prepare.cli import NAME, app
        app(prog_name=NAME, obj=stopping)
    except Stopped:
        print("setup_r2e_data_and_sifs.sh: stopped; run the same command to go on", file=sys.stderr)
        sys.exit(stopping.exit_code)


if __name__ == "__main__":
    main()
