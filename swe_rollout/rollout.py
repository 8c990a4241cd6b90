"""One session, from the first model call to its outcome."""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from swe_rollout import artifacts
from swe_rollout.agent import MyAgent
from swe_rollout.artifacts import SessionFolder
from swe_rollout.config import RolloutConfig
from swe_rollout.environment import SandboxEnvironment
from swe_rollout.errors import AgentFault, Cancelled, InfrastructureError, ModelError
from swe_rollout.model import Chat, RelaxModel
from swe_rollout.outcome import Outcome
from swe_rollout.sandbox.sandbox import Sandbox, SandboxHost
from swe_rollout.sandbox.watch import Usage, recording
from swe_rollout.scoring.change import capture
from swe_rollout.scoring.judge import Judge
from swe_rollout.scoring.judgement import Judgement
from swe_rollout.session import Mode, Session
from swe_rollout.slots import Slots
from swe_rollout.workspace import AgentWorkspace

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rollout:
    """Runs sessions; what they share is here, each one's own state is in an `_Attempt`."""

    config: RolloutConfig
    hosts: Mapping[Mode, SandboxHost]
    slots: Mapping[Mode, Slots]
    """For sandboxes that an agent works in."""
    scoring_slots: Slots
    """For sandboxes of the judge."""
    chat: Chat
    judges: Mapping[Mode, Judge]
    work_dir: Path

    def __call__(self, session: Session) -> Outcome:
        """Run `session` to its end; every fault named in `errors.py` becomes the outcome that belongs to it."""
        attempt = _Attempt(self, session)
        try:
            outcome = attempt.run()
        except Cancelled as reason:
            outcome = Outcome.cancelled(str(reason))
        except InfrastructureError as error:
            # What goes wrong while a session is given up says nothing of its row.
            blames_row = not isinstance(error, ModelError) and session.cancellation.reason is None
            outcome = Outcome.failed(f"{type(error).__name__}: {error}", blames_row=blames_row)
        finally:
            attempt.close()
        cause = None if outcome.error is None else session.without_key(outcome.error)
        outcome = dataclasses.replace(outcome, error=cause, n_calls=attempt.agent.n_calls)
        attempt.record(outcome)
        return outcome


class _Attempt:
    """The state of one run. Used by one thread."""

    def __init__(self, shared: Rollout, session: Session) -> None:
        self._shared = shared
        self._session = session
        self._sandbox: Sandbox | None = None
        self._slot = contextlib.ExitStack()
        self._judgement: Judgement | None = None
        self._usage = {"agent": Usage(), "judge": Usage()}
        config, request = shared.config, session.request
        self._model = RelaxModel(
            config.model,
            shared.chat,
            base_url=request.base_url,
            api_key=request.api_key.get_secret_value(),
            cancellation=session.cancellation,
        )
        self._environment = SandboxEnvironment(
            config.environment, self._open_workspace, seconds_limit=config.agent.wall_time_limit_seconds
        )
        self.agent = MyAgent(config.agent, self._model, self._environment, on_call=self._count)

    def run(self) -> Outcome:
        session = self._session
        try:
            end = self.agent.run(session.task.problem_statement)
            exit_status, submission = end["exit_status"], end["submission"]
            reason = f"the run ended with {exit_status}"
        except AgentFault as fault:
            exit_status, submission, reason = fault.exit_status, "", str(fault)
        finally:
            session.note("model", self._model.seconds)
            session.note("commands", self._environment.seconds)
        submitted = exit_status == "Submitted"
        self._leave_workspace()
        session.cancellation.check()
        try:
            self._judgement = self._judged(run_tests=submitted)
        except AgentFault as fault:
            return Outcome.completed(exit_status, 0.0, submission=submission, reason=self._with_kills(str(fault)))
        except InfrastructureError as error:
            if submitted:
                raise
            # The reward is known; only what the agent left cannot be shown to people.
            log.warning("%s: the patch is not stored: %s: %s", session.id, type(error).__name__, error)
        if not submitted:
            return Outcome.completed(exit_status, 0.0, submission=submission, reason=reason)
        verdict = self._judgement.verdict if self._judgement else None
        if verdict is None:
            return Outcome.completed(exit_status, 0.0, submission=submission, reason="submitted without a command")
        reason = verdict.reason if verdict.reward else self._with_kills(verdict.reason)
        return Outcome.completed(exit_status, verdict.reward, submission=submission, reason=reason)

    def close(self) -> None:
        """Give back what the run holds, wherever it stopped."""
        if self._sandbox is not None:
            self._sandbox.discard()
        self._slot.close()

    def record(self, outcome: Outcome) -> None:
        """Write the session's folder. A work dir that cannot take it changes nothing about the outcome."""
        session, judgement = self._session, self._judgement
        folder = SessionFolder(self._shared.work_dir, f"{session.opened_at:%Y-%m-%d}", session.id)
        task, verdict = session.task, judgement.verdict if judgement else None
        try:
            folder.write_json(
                artifacts.TASK,
                {"task_id": task.id, "docker_image": task.docker_image, "group_id": session.request.group_id}
                | {"mode": session.request.mode, "session_id": session.id},
            )
            if self.agent.messages:
                end = {"exit_status": outcome.agent_exit_status or outcome.status, "submission": outcome.submission}
                folder.write_json(artifacts.TRAJECTORY, self.agent.serialize({"info": {"task_id": task.id, **end}}))
            if judgement is not None:
                folder.write(artifacts.PATCH, judgement.patch)
                if verdict is not None:
                    folder.write(artifacts.TEST_LOG, judgement.log)
            tests = dict(verdict.tests) if verdict else {}
            folder.write_json(
                artifacts.OUTCOME,
                {**dataclasses.asdict(outcome), "exit_code": outcome.exit_code, "tests": tests}
                | {"grading_status": verdict.status if verdict else None, "timings": session.timings}
                | {"withdrawn": judgement.withdrawn if judgement else ()}
                | {"peak_memory_mb": {who: usage.peak_memory_mb for who, usage in self._usage.items()}},
            )
        except OSError as error:
            log.error("%s: cannot write %s: %s", session.id, folder.path, error)

    def _count(self, n_calls: int) -> None:
        self._session.n_calls = n_calls

    def _open_workspace(self) -> AgentWorkspace:
        """Take a slot and start the sandbox: the model has asked for its first command."""
        session, shared = self._session, self._shared
        slots = shared.slots[session.request.mode]
        session.note("slot_wait", self._slot.enter_context(slots.hold(session.cancellation)))
        session.advance("running")
        with self._timed("sandbox_start"), recording() as self._usage["agent"]:
            self._sandbox = Sandbox(shared.hosts[session.request.mode], session.task.sif)
            self._sandbox.start(session.cancellation)
        with self._timed("setup"):
            return AgentWorkspace(self._sandbox, shared.config.setup, session.task.tests.hidden, session.cancellation)

    def _leave_workspace(self) -> None:
        """End the agent's sandbox; others may have its slot while this session is judged."""
        if self._sandbox is not None:
            self._sandbox.close()
        self._slot.close()

    def _judged(self, *, run_tests: bool) -> Judgement | None:
        """None when no command was ever run, so that there is nothing to look at."""
        session, shared, sandbox = self._session, self._shared, self._sandbox
        if sandbox is None:
            return None
        session.advance("scoring")
        with shared.scoring_slots.hold(session.cancellation) as waited, self._timed("scoring"):
            session.note("scoring_wait", waited)
            with recording() as self._usage["judge"]:
                return shared.judges[session.request.mode].judge(
                    session.task,
                    lambda: capture(sandbox.layer, shared.config.environment.cwd, sandbox.folder / "change"),
                    self._environment.submitted,
                    session.cancellation,
                    run_tests=run_tests,
                )

    def _with_kills(self, reason: str) -> str:
        kills = self._usage["judge"].kills
        return f"{reason}; in the judge's sandbox {kills}" if kills else reason

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self._session.note(phase, time.monotonic() - started)
