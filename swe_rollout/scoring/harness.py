"""The official SWE-bench harness, asked in a process of its own."""

import dataclasses
import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from swe_rollout.cancellation import Cancellation
from swe_rollout.errors import ScoringError, StartupError
from swe_rollout.scoring.swebench import SWEBenchTests
from swe_rollout.scoring.verdict import Verdict
from swe_rollout.scoring.worker_process import WorkerDied, WorkerExhausted, WorkerLimits, WorkerProcess, WorkerUnusable
from swe_rollout.slots import Slots

log = logging.getLogger(__name__)

_INSTALL = "uv pip install swebench==5.0.2"
_TRIES = 2
_ASKED = ("instance_id", "repo", "version", "log_parser", "eval_type", "eval_script")
_NAMED = 3
"""Failing tests named in a reason."""


class Harness:
    """Owns the one worker process, which is started when it is first needed. Thread-safe.

    One call at a time, by arrival; grading takes milliseconds. A worker that dies, hangs or is cancelled in the middle
    of a call is ended by its process id, and the next call starts another one.
    """

    def __init__(self, limits: WorkerLimits | None = None) -> None:
        self._limits = limits or WorkerLimits()
        self._turn = Slots(1)
        self._lock = threading.Lock()
        self._worker: WorkerProcess | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The worker's process id; None while there is none."""
        worker = self._worker
        return worker.pid if worker else None

    def ungradable(self, tests: Iterable[SWEBenchTests]) -> dict[str, str]:
        """Why the harness cannot grade a row, by instance id; rows it can grade are not there.

        Raises `StartupError` when swebench cannot be imported.
        """
        try:
            return dict(self._ask("ungradable", [_row(one, lists=False) for one in tests], cancellation=Cancellation()))
        except (WorkerExhausted, ScoringError) as error:
            raise StartupError(f"the SWE-bench harness cannot be used ({error}): {_INSTALL}") from error

    def script(self, tests: SWEBenchTests, text: str, cancellation: Cancellation) -> str:
        """What is to be run for the eval script `text`: it also tells the exit code of the test run.

        Raises `ScoringError` and `Cancelled`.
        """
        row = _row(dataclasses.replace(tests, eval_script=text))
        try:
            return str(self._ask("script", row, cancellation=cancellation))
        except WorkerExhausted as error:
            raise ScoringError(f"the grading process {error}") from error

    def grade(self, tests: SWEBenchTests, patch: str, log: bytes, cancellation: Cancellation) -> Verdict:
        """Grade the log of an eval script (standard output and error in one stream) that ran on `patch`.

        A log that the parser fails on or never ends with is one of the code under test, hence 0.0.
        Raises `ScoringError` when there is no grading process or the machine has no time for it, and `Cancelled`.
        """
        if not patch.strip():
            return Verdict.zero("nothing was submitted", status="no_change")
        n_expected = len(tests.fail_to_pass) + len(tests.pass_to_pass)
        try:
            report = self._ask("grade", _row(tests), patch, log=log, cancellation=cancellation)
        except WorkerExhausted:
            reason = f"the log parser did not end within {self._limits.cpu:g} s of CPU time"
            return Verdict.zero(reason, status="parser_error", n_expected=n_expected)
        if failure := report.get("parser_error"):
            reason = f"the log parser failed: {' '.join(failure.split())[:300]}"
            return Verdict.zero(reason, status="parser_error", n_expected=n_expected)
        if "tests_status" not in report:
            hint = report.get("infra_failure_reason")
            reason = "the log holds no results that can be believed" + (f" ({hint})" if hint else "")
            return Verdict.zero(reason, status="no_results", n_expected=n_expected)
        if denied := report["denied"]:
            reason = f"the log reports {denied[0]!r} as failed and, further down, as passed"
            return Verdict.zero(reason, status="no_results", n_expected=n_expected)
        return _verdict(report, n_expected)

    def close(self) -> None:
        """End the worker. Idempotent; whoever waits for an answer gets a `ScoringError`."""
        with self._lock:
            self._closed = True
            if self._worker is not None:
                self._worker.end()

    def _ask(self, call: str, *arguments: object, log: bytes = b"", cancellation: Cancellation) -> Any:
        with self._turn.hold(cancellation):
            for left in reversed(range(_TRIES)):
                worker = self._running()
                try:
                    return worker.ask(call, *arguments, log=log, cancellation=cancellation)
                except WorkerUnusable as error:
                    self._drop(worker)
                    raise ScoringError(f"the grading process {error}") from error
                except WorkerDied as error:
                    self._drop(worker)
                    if not left:
                        raise ScoringError(f"the grading process died {_TRIES} times: {error}") from error
                except BaseException:
                    self._drop(worker)
                    raise
        raise AssertionError("unreachable")

    def _running(self) -> WorkerProcess:
        with self._lock:
            if self._closed:
                raise ScoringError("the server is closing")
            if self._worker is None:
                try:
                    self._worker = WorkerProcess(self._limits)
                except OSError as error:
                    raise ScoringError(f"the grading process cannot be started: {error}") from error
            return self._worker

    def _drop(self, worker: WorkerProcess) -> None:
        log.info("the grading process %d is ended", worker.pid)
        with self._lock:
            self._worker = None
            worker.close()


def _row(tests: SWEBenchTests, *, lists: bool = True) -> dict[str, object]:
    row: dict[str, object] = {name: getattr(tests, name) for name in _ASKED}
    row["eval_script"] = tests.eval_script or ""
    row["FAIL_TO_PASS"] = list(tests.fail_to_pass) if lists else []
    row["PASS_TO_PASS"] = list(tests.pass_to_pass) if lists else []
    return row


def _verdict(report: Mapping[str, Any], n_expected: int) -> Verdict:
    lists = report["tests_status"]
    kinds = ("FAIL_TO_PASS", "PASS_TO_PASS")
    tests = {name: "PASSED" for kind in kinds for name in lists[kind]["success"]}
    failures = [name for kind in kinds for name in lists[kind]["failure"]]
    tests |= dict.fromkeys(failures, "FAILED")
    if report["resolved"]:
        return Verdict.one(f"all {n_expected} tests as expected", tests=tests, n_expected=n_expected)
    n_as_expected = n_expected - len(failures)
    named = [repr(name[:160]) for name in failures[:_NAMED]] + (["more"] if len(failures) > _NAMED else [])
    reason = f"{n_as_expected} of {n_expected} tests as expected; not {', '.join(named)}"
    return Verdict.zero(reason, tests=tests, n_expected=n_expected, n_as_expected=n_as_expected)
