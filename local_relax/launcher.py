"""How an agent process is started. How it is ended differs: see `log_launcher` and `pipe_launcher`."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from local_relax.errors import StepError

RESERVED_PREFIX = "RELAX_"


@dataclass(frozen=True)
class AgentCommand:
    """What to launch for every session."""

    command: str
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to this process's environment; loses against the RELAX_ variables."""

    def __post_init__(self) -> None:
        """Raises `ValueError` if the environment touches the reserved prefix or the folder does not exist."""
        reserved = sorted(name for name in self.env if name.startswith(RESERVED_PREFIX))
        if reserved:
            raise ValueError(f"the prefix {RESERVED_PREFIX} is reserved, rename {', '.join(reserved)}")
        if not self.cwd.is_dir():
            raise ValueError(f"{self.cwd} is not a folder")


class AgentProcess(Protocol):
    """One running agent: a shell in its own session and process group, with a folder for input and output.

    `wait`, `said` and `close` are called by one thread only, in this order.
    """

    @property
    def output(self) -> Path:
        """The output file; the agent makes it."""
        ...

    def wait(self) -> int | None:
        """Block until the process is over, or nobody waits for it any more (None).

        The exit code, or minus the signal that killed the leader.
        """
        ...

    def said(self) -> str:
        """What the agent printed, as far as Relax puts it into error messages."""
        ...

    def close(self) -> None:
        """Remove the folder. Nothing else is valid after it."""
        ...


class Launcher(Protocol):
    def launch(self, agent: AgentCommand, relax_env: Mapping[str, str], agent_input: Mapping[str, Any]) -> AgentProcess:
        """Raises `StepError` if that is impossible."""
        ...

    def end(self, processes: Sequence[Any]) -> None:
        """End processes of this launcher whose sessions are discarded; any of them may be over or closed."""
        ...

    def close(self) -> Sequence[int]:
        """Let no process of this launcher survive. Returns the process groups that had to be killed for that."""
        ...


class IoFolder:
    """What one agent gets to read, and the place for what it has to write."""

    def __init__(self, agent_input: Mapping[str, Any]) -> None:
        """Raises `StepError`."""
        try:
            self.path = Path(tempfile.mkdtemp(prefix="relax-agentic-command-"))
        except OSError as error:
            raise StepError(f"cannot make a folder for an agent: {error}") from error
        self.output = self.path / "session_output.json"
        self._input = self.path / "session_input.json"
        self._text = json.dumps(agent_input, separators=(",", ":"), ensure_ascii=False)

    def spawn(
        self, agent: AgentCommand, relax_env: Mapping[str, str], stdout: int | IO[bytes], stderr: int
    ) -> "subprocess.Popen[bytes]":
        """Write the input and start the agent. Raises `StepError`, and removes the folder then."""
        paths = {
            "RELAX_SESSION_IO_DIR": str(self.path),
            "RELAX_INPUT_JSON": str(self._input),
            "RELAX_OUTPUT_JSON": str(self.output),
        }
        try:
            self._input.write_text(self._text, encoding="utf-8")
            return subprocess.Popen(
                ["/bin/bash", "-lc", agent.command],
                cwd=agent.cwd.resolve(),
                env={**os.environ, **agent.env, **relax_env, **paths},
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        except OSError as error:
            self.remove()
            raise StepError(f"cannot launch the agent command: {error}") from error

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def exit_code_of(ended: "os.waitid_result | None") -> int:
    """The exit code, or minus the signal, in what `os.waitid` answered without WNOHANG."""
    assert ended is not None  # only WNOHANG can answer None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
