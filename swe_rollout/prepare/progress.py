"""How far it is: a live display on a terminal, else one line per finished image."""

import contextlib
import threading
import time
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from swe_rollout.durations import rough
from swe_rollout.prepare.disk import gb

_NAMES = 6


class Progress:
    """Counts what ends and shows it; for many threads."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total = console, total
        self._lock = threading.Lock()
        self._done = self._failed = self._bytes = 0
        self._running: dict[str, float] = {}
        self._began = time.monotonic()

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show it while the block runs."""
        self._began = time.monotonic()
        if not self._console.is_interactive:
            yield
            return
        with Live(get_renderable=self._render, console=self._console, refresh_per_second=4):
            yield

    @contextlib.contextmanager
    def running(self, image: str) -> Iterator[None]:
        """While `image` is worked on."""
        with self._lock:
            self._running[image] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._running[image]

    def done(self, image: str, how: str, size: int, seconds: float) -> None:
        """One more is there. `size` in bytes."""
        with self._lock:
            self._done += 1
            self._bytes += size
            line = f"[{self._done + self._failed}/{self._total}] {how} {image} {gb(size)} in {seconds:.1f} s"
            line += f", about {left} left" if (left := self._left()) else ""
        if not self._console.is_interactive:
            self.say(line)

    def failed(self, image: str, reason: str) -> None:
        """One will not be there."""
        with self._lock:
            self._failed += 1
            line = f"[{self._done + self._failed}/{self._total}] failed {image}: {reason}"
        self.say(line, style="red")

    def say(self, line: str, style: str = "") -> None:
        """One line, above the display."""
        self._console.print(Text(line, style=style), soft_wrap=True)

    def _left(self) -> str:
        ended = self._done + self._failed
        if not ended or ended >= self._total:
            return ""
        return rough((time.monotonic() - self._began) / ended * (self._total - ended))

    def _render(self) -> RenderableType:
        with self._lock:
            now = time.monotonic()
            ended = self._done + self._failed
            rate = ended / max(now - self._began, 1e-3) * 60
            running = sorted(self._running.items(), key=lambda item: item[1])
            words = f"SIFs {ended}/{self._total}  {gb(self._bytes)}  {rate:.1f}/min"
            words += f"  left {self._left() or '?'}" if ended < self._total else ""
            words += f"  {self._failed} failed" if self._failed else ""
        head = Table.grid(padding=(0, 1))
        head.add_row(ProgressBar(total=max(self._total, 1), completed=ended, width=24), Text(words))
        names = [
            Text(f"  {now - since:5.0f} s  {image}", style="dim", no_wrap=True) for image, since in running[:_NAMES]
        ]
        more = [Text(f"  and {len(running) - _NAMES} more", style="dim")] if len(running) > _NAMES else []
        return Group(head, *names, *more)
