"""The official SWE-bench harness, asked in a process of its own."""

from collections.abc import Iterable

from swe_rollout.cancellation import Cancellation
from swe_rollout.scoring.swebench import SWEBenchTests
from swe_rollout.scoring.verdict import Verdict


class Harness:
    """Owns the one worker process, which is started when it is first needed. Thread-safe."""

    def ungradable(self, tests: Iterable[SWEBenchTests]) -> dict[str, str]:
        """Why the harness cannot grade a row, by instance id; rows it can grade are not there.

        Raises `StartupError` when swebench cannot be imported.
        """
        raise NotImplementedError

    def grade(self, tests: SWEBenchTests, patch: str, log: bytes, cancellation: Cancellation) -> Verdict:
        """Grade the log of an eval script that ran on `patch`."""
        raise NotImplementedError

    def close(self) -> None:
        """End the worker. Idempotent; whoever waits for an answer gets a `ScoringError`."""
