"""How far a download is: a bar on a terminal, else a plain line now and then."""

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

_SECONDS_BETWEEN_LINES = 15.0


@contextlib.contextmanager
def shown(console: Console, title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields what is to be called, as often as one likes, with the number of bytes that have come so far."""
    if console.is_interactive:
        columns = (TextColumn("   {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
            task = progress.add_task(title, total=total)
            yield lambda done: progress.update(task, completed=min(done, total))
        return
    due = time.monotonic() + _SECONDS_BETWEEN_LINES

    def line(done: int) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _SECONDS_BETWEEN_LINES
            console.print(f"   {title}: {decimal(done)} of {decimal(total)}")

    yield line
