#!/usr/bin/env python3
"""The agent server: leases tasks, runs mini-swe-agent in sandboxes, scores submissions, answers over HTTP."""

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from swe_rollout.errors import StartupError
from swe_rollout.settings import Settings, load_settings, strangers, variable_of

if TYPE_CHECKING:
    from swe_rollout.agent import MyAgent as MyAgent
    from swe_rollout.assembly import Parts
    from swe_rollout.journal import Journal

log = logging.getLogger("swe_rollout.server")

_SECONDS_TO_STOP = 9.5
_COMMANDS = ("validate", "rescore")


def __getattr__(name: str) -> Any:
    # mini-swe-agent takes seconds to import; a process that only serves HTTP or prints its help need not.
    if name == "MyAgent":
        from swe_rollout.agent import MyAgent

        return MyAgent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server until a signal ends it, or a command; the exit code.

    If it must not start it says why in one line.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words and words[0] in _COMMANDS:
            return _run_command(words[0], words[1:])
        settings = load_settings(words)
        # What it starts need not know, and may run as others.
        os.environ.pop(variable_of("token"), None)
        log_to_stderr()
        for line in strangers(os.environ):
            log.warning("%s", line)
        from swe_rollout.assembly import assemble
        from swe_rollout.journal import Journal
        from swe_rollout.listener import bind

        # Before anything slow: a port or a folder that is taken should be known at once.
        sock = bind(settings.host, settings.port)
        with contextlib.closing(Journal(settings.work_dir)) as journal:
            return serve(settings, assemble(settings), sock, journal)
    except StartupError as error:
        print(f"agent_server.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _run_command(name: str, argv: Sequence[str]) -> int:
    os.environ.pop(variable_of("token"), None)
    log_to_stderr()
    logging.getLogger("swe_rollout").setLevel(logging.WARNING)
    from swe_rollout.validation.command import run_rescore, run_validate

    return run_validate(argv) if name == "validate" else run_rescore(argv)


def serve(settings: Settings, parts: "Parts", sock: socket.socket, journal: "Journal") -> int:
    """Answer on `sock` until SIGTERM or SIGINT, then end every session and sandbox.

    Returns 128 + the signal's number, in less than 10 seconds after the signal; a second signal changes nothing.
    Call it from the main thread, which may start no process afterwards. Raises `StartupError` if the address was
    taken meanwhile.
    """
    from swe_rollout.listener import raise_file_limit
    from swe_rollout.reaper import Reaper
    from swe_rollout.service import Service

    raise_file_limit()
    service = Service(settings, parts, journal, jobs=[Reaper().reap])
    url = service.listen(sock)
    signals: list[int] = []

    def stop() -> None:
        log.info("stopping: %s", signal.Signals(signals[0]).name)
        service.stop()

    def give_up() -> None:
        log.error("not everything could be stopped in %g s", _SECONDS_TO_STOP)
        os._exit(128 + signals[0])

    def on_signal(number: int, _frame: FrameType | None) -> None:
        signals.append(number)
        if len(signals) == 1:
            deadline = threading.Timer(_SECONDS_TO_STOP, give_up)
            deadline.daemon = True
            deadline.start()
            threading.Thread(target=stop, name="stop").start()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    log.info("listening on %s run=%s epoch=%s %s", url, settings.run_id, service.sessions.epoch, _facts(parts))
    service.run()
    log.info("stopped")
    return 128 + signals[0]


def log_to_stderr() -> None:
    """One line per event: UTC time, level, what."""
    handler = logging.StreamHandler()
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("swe_rollout").setLevel(logging.INFO)
    # It warns of every request that waits for a thread.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)


def _facts(parts: "Parts") -> str:
    from swe_rollout.inventory import in_words
    from swe_rollout.session import MODES

    tasks = parts.tasks()
    words = [in_words(mode, tasks[mode]) if mode in tasks else f"{mode}: no rows" for mode in MODES]
    slots = ", ".join(f"{name} {pool.capacity}" for name, pool in parts.slots.items())
    return "; ".join([*words, f"slots: {slots}", f"confinement: {parts.confinement}"])


if __name__ == "__main__":
    sys.exit(main())
