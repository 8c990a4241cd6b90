"""`python -m bench`: sandbox figures on this machine, beside bare bash and beside Apptainer instances; then SIFs built
beside `apptainer build` with its defaults; rows validated per hour; the server under many clients, beside one client
alone.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.load import measure_load
from bench.measure import Figures, measure_bash, measure_instance, measure_sandbox
from bench.sifs import measure_sifs
from bench.validation import measure_validation
from swe_rollout.cache import cache_folder
from swe_rollout.errors import StartupError
from swe_rollout.sandbox.confinement import choose


def main() -> int:
    """Measure and print; 1 and one line when the machine or the image cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--sif", type=Path, help="image to start (default: the first sample task's)")
    parser.add_argument("--rounds", type=int, default=10, help="sandboxes per figure (default %(default)s)")
    parser.add_argument("--commands", type=int, default=200, help="commands per sandbox (default %(default)s)")
    parser.add_argument("--clients", type=int, default=1000, help="on the server at once (default %(default)s)")
    options = parser.parse_args()
    sif = options.sif or _first_sample()
    if sif is None or not sif.is_file():
        print("bench: no image to start: run `make samples`, or name one with --sif", file=sys.stderr)
        return 1
    user = os.environ.get("AGENT_SERVER_SANDBOX_USER", "swe-sandbox")
    console = Console(width=max(Console().width, 110))
    console.print(f"image {sif.name}, {sif.stat().st_size >> 20} MB; medians in ms, then the ratio to the instance")
    with tempfile.TemporaryDirectory(prefix="swe-rollout-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        try:
            bash = measure_bash(options.commands)
            instance = measure_instance(sif, options.rounds, options.commands // 10)
            ours = {
                wanted: measure_sandbox(sif, folder, choose(wanted, user), options.rounds, options.commands)
                for wanted in ("unprivileged", "root")
                if wanted == "unprivileged" or os.geteuid() == 0
            }
            console.print(_table(instance, ours))
            _compare(console, bash, ours)
            measure_sifs(sif).show(console)
            measure_validation(cache_folder() / "samples", folder).show(console)
            measure_load(folder, clients=options.clients).show(console)
        except StartupError as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
    return 0


def _compare(console: Console, bash: float, ours: dict[str, Figures]) -> None:
    for wanted, figures in ours.items():
        above = figures.command - 2 * bash
        console.print(
            f"one `true`, {wanted}: {figures.command:.2f} ms; bare `bash -c true` on the host {bash:.2f} ms "
            f"(ratio {figures.command / bash:.2f}; {above:+.2f} ms against twice bash)"
        )


def _first_sample() -> Path | None:
    return next(iter(sorted((cache_folder() / "samples" / "sifs").glob("*.sif"))), None)


def _table(instance: Figures, ours: dict[str, Figures]) -> Table:
    table = Table()
    table.add_column("step")
    table.add_column("instance + exec", justify="right")
    for wanted in ours:
        table.add_column(f"sandbox, {wanted}", justify="right")
    for field, words in Figures.steps().items():
        base = getattr(instance, field)
        cells = [f"{getattr(figures, field):.1f}  ({getattr(figures, field) / base:.2f}x)" for figures in ours.values()]
        table.add_row(words, f"{base:.1f}", *cells)
    return table


if __name__ == "__main__":
    sys.exit(main())
