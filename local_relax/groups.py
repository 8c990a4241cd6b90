"""One group from launch to the end: all its sessions deliver, or all of them are dropped."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from local_relax.errors import AgentExecutionError, StepError
from local_relax.generation import Generation
from local_relax.ids import Mode
from local_relax.launcher import AgentCommand, AgentProcess
from local_relax.output import scalar_reward
from local_relax.results import GroupResult, Sample, SessionResult
from local_relax.sessions import SessionTable
from local_relax.state import Group, Session

_ANSWER_SECONDS = 10.0
"""How long discarding waits for its 404s to be on the wire before it sends SIGTERM."""


@dataclass(frozen=True)
class GroupRunner:
    """Runs groups, each in the calling thread plus one joined thread per session. Has no state of its own."""

    table: SessionTable
    agent: AgentCommand
    base_url: str
    generation: Generation
    mode: Mode
    agent_timeout: float
    """Active seconds a group may take."""
    reward_key: str | None = None
    """Field of reward objects that is the reward."""

    def run(self, number: int, policies: Sequence[str]) -> GroupResult:
        """Run the group with this number, one session per policy.

        Raises `StepError` if an agent cannot be launched or a sample has no reward.
        """
        ids = self.generation.ids
        members = [(ids.session(number, slot), policy) for slot, policy in enumerate(policies)]
        group = self.table.open_group(ids.group(self.mode, number), number, members)
        failures: list[StepError] = []  # appended by this group's threads, read after they are joined
        running = []
        for session in group.sessions:
            try:
                process = self._launch(session)
            except StepError as error:
                failures.append(error)
                self.table.drop(group, str(error))
                break
            name = f"agent-{number}-{session.slot}"
            thread = threading.Thread(target=self._attend, args=(session, process, failures), name=name)
            thread.start()
            running.append((process, thread))
        reason = self.table.await_end(group, self.agent_timeout)
        if reason is not None:
            self.table.discard(group, _ANSWER_SECONDS)
            self.generation.launcher.end([process for process, _ in running])
        for _, thread in running:
            thread.join()
        self.table.forget(group)
        if failures:
            raise failures[0]
        return _result(group, reason)

    def _launch(self, session: Session) -> AgentProcess:
        relax_env = {
            "RELAX_SESSION_ID": session.id,
            "RELAX_GROUP_ID": session.group.id,
            "RELAX_ROLLOUT_MODE": self.mode,
            "RELAX_BASE_URL": self.base_url,
        }
        return self.generation.launcher.launch(self.agent, relax_env, {"messages": []})

    def _attend(self, session: Session, process: AgentProcess, failures: list[StepError]) -> None:
        """Wait for the process, read its output, book the result."""
        started = session.group.opened_at
        exit_code = process.wait()
        seconds = time.monotonic() - started
        samples: Sequence[Sample] = ()
        error: str | None = "its thread ended unexpectedly"
        try:
            if self.table.finish(session):
                samples = self._samples(session, process, exit_code)
            else:
                exit_code = None  # whatever the process says after the drop does not count
            error = None
        except (AgentExecutionError, StepError) as problem:
            error = str(problem)
            if isinstance(problem, StepError):
                failures.append(problem)
        finally:
            process.close()
            result = SessionResult(
                session_id=session.id,
                group_id=session.group.id,
                slot=session.slot,
                policy=session.policy,
                turns=session.turns,
                seconds=seconds,
                exit_code=exit_code,
                samples=samples,
                error=error,
            )
            self.table.settle(session, result)

    def _samples(self, session: Session, process: AgentProcess, exit_code: int | None) -> Sequence[Sample]:
        try:
            return self._exported(session, process, exit_code)
        except AgentExecutionError as error:
            if session.requests or self.mode not in self.generation.early_exit_ends_run:
                raise
            raise StepError(f"an agent exited before any chat request, which ends the run: {error}") from None

    def _exported(self, session: Session, process: AgentProcess, exit_code: int | None) -> Sequence[Sample]:
        if exit_code != 0:
            raise AgentExecutionError(f"agent exited with code {exit_code}: {process.said()}")
        output = self.generation.read_output(process.output)
        self.table.check_export(session, output)
        if not output.records:
            return [Sample(scalar_reward(output.reward, self.reward_key), output.metadata)]
        return [
            Sample(scalar_reward(record.reward, self.reward_key), record.metadata, record.name)
            for record in output.records
        ]


def _result(group: Group, reason: str | None) -> GroupResult:
    return GroupResult(
        group_id=group.id,
        ending="committed" if reason is None else "cancelled" if group.blameless else "dropped",
        seconds=time.monotonic() - group.opened_at,
        warm_seconds=None if group.leased_at is None else group.leased_at - group.opened_at,
        sessions=[session.result for session in group.sessions if session.result is not None],
        reason=reason,
    )
