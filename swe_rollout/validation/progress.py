"""How far it is: a live bar on a terminal, else one line per job."""

import contextlib
import threading
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from swe_rollout.durations import rough


class Progress:
    """Counts jobs as they end; for many threads."""

    def __init__(self, console: Console, total: int, what: str) -> None:
        self._console, self._total = console, total
        self._lock = threading.Lock()
        self._n_done = self._n_kept = 0
        self._began = time.monotonic()
        self._bar = Bar(
            TextColumn(what),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            disable=not console.is_interactive,
        )
        self._task = self._bar.add_task(what, total=total, left="")

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show it while the block runs."""
        self._began = time.monotonic()
        with self._bar:
            yield

    @property
    def n_done(self) -> int:
        """Jobs done since the start."""
        return self._n_done

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def kept(self) -> None:
        """One more was done by an earlier run."""
        with self._lock:
            self._n_kept += 1
            self._bar.update(self._task, advance=1)

    def done(self, line: str, *, notable: bool) -> None:
        """One more is done; on a terminal only notable ones get their line."""
        with self._lock:
            self._n_done += 1
            left = self._left()
            self._bar.update(self._task, advance=1, left=left)
            number = f"[{self._n_done + self._n_kept}/{self._total}] "
            if not self._console.is_interactive:
                line = number + line + (f", {left}" if left else "")
            if notable or not self._console.is_interactive:
                self._console.print(Text(line, style="red" if notable else ""), soft_wrap=True)

    def _left(self) -> str:
        n_left = self._total - self._n_done - self._n_kept
        if not n_left:
            return ""
        return f"about {rough(self.seconds / self._n_done * n_left)} left"
