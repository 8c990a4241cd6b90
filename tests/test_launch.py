"""The launch script as a whole: the real agent server on the sample tasks, and a stand-in for Relax and ray."""

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from endpoint import Endpoint
from scripted import Gate, Server, request_body
from waiting import until

ROOT = Path(__file__).parents[1]
NAME = "run_mini_swe_agent.sh"

# Written as Relax's is: for a shell without -e and -u, and it kills what Python it finds (here: what it is told).
ENTRYPOINT = """
[ -z "$NO_SUCH_VARIABLE" ] && false
for pid in $PIDS_TO_KILL; do kill -9 "$pid"; done
echo "entrypoint $# $(pwd)" >>"$RECORD/events"
set -x
RUNTIME_ENV_JSON='{"env_vars": {"PYTHONPATH": "/Megatron"}}'
"""

RAY = """#!/usr/bin/env bash
echo "ray $1 $2" >>"$RECORD/events"
printf '%s\\0' "$@" >"$RECORD/$2.args"
[[ $2 == submit ]] || exit 0
env -0 >"$RECORD/submit.env"
for word in "$@"; do
    case $word in
        AGENT_SERVER_URL=*) curl -qfs --noproxy '*' "${word#*=}/readyz" >"$RECORD/readyz.json" ;;
        AGENT_SERVER_TOKEN_FILE=*) cp -p "${word#*=}" "$RECORD/token" ;;
    esac
done
[[ $RAY_EXIT_CODE == wait ]] || exit "$RAY_EXIT_CODE"
touch "$RECORD/training"
exec sleep infinity
"""


@dataclass
class Launch:
    """One run of the script, and what the stand-ins have recorded of it."""

    process: "subprocess.Popen[str]"
    folder: Path

    def end(self) -> tuple[int, str]:
        """Wait for the end; exit code and what people read."""
        _, said = self.process.communicate(timeout=200)
        return self.process.returncode, said

    def await_training(self) -> None:
        """Return once the training job is submitted."""
        until(lambda: (self.folder / "record/training").exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.end()

    def events(self) -> list[str]:
        file = self.folder / "record/events"
        return file.read_text().splitlines() if file.exists() else []

    def arguments(self, call: str = "submit") -> list[str]:
        return (self.folder / f"record/{call}.args").read_text().split("\0")[:-1]

    @property
    def job(self) -> str:
        (job,) = _values(self.arguments(), "--submission-id")
        return job

    def server(self) -> int | None:
        """The process id of the agent server, known by the folder that only this launch's server has."""
        found = [pid for pid in _processes(f"--work-dir\0{self.folder}/") if _session_of(pid) == pid]
        return found[0] if found else None


Launcher = Callable[..., Launch]


@pytest.fixture
def launch(samples: Path, train_data: Path, open_folder: Callable[[], Path]) -> Iterator[Launcher]:
    """Starts the script with everything it needs; a variable given as None is not set."""
    launches: list[Launch] = []

    def start(*arguments: str, **changes: str | int | Path | None) -> Launch:
        folder = open_folder()
        for path, text in (("relax/scripts/entrypoint/local.sh", ENTRYPOINT), ("bin/ray", RAY)):
            (folder / path).parent.mkdir(parents=True)
            (folder / path).write_text(text)
        (folder / "bin/ray").chmod(0o755)
        (folder / "record").mkdir()
        variables = {
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "RECORD": folder / "record",
            "RAY_EXIT_CODE": 0,
            "RELAX_DIR": folder / "relax",
            "MINI_SWE_AGENT_VENV": sys.prefix,
            "MODEL_DIR": "/models",
            "SAVE_DIR": folder / "save",
            "R2E_DATA_PATH": train_data,
            "R2E_SIF_DIR": samples / "sifs",
            "AGENT_SERVER_PORT": _free_port(),
            "AGENT_SERVER_TMP_DIR": folder / "tmp",
            "RUNTIME_ENV_JSON": None,
            **changes,
        }
        environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        for name, value in variables.items():
            if value is None:
                del environment[name]
        process = subprocess.Popen(
            # Whoever runs the tests may have them ignore Ctrl-C, which bash could not undo.
            ["env", "--default-signal=INT", "bash", str(ROOT / NAME), *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        launches.append(Launch(process, folder))
        return launches[-1]

    yield start
    for one in launches:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGTERM)
        one.process.communicate(timeout=200)


def test_a_whole_launch(launch: Launcher) -> None:
    port = _free_port()
    stale = subprocess.Popen(
        [sys.executable, "-m", "http.server", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    run = launch(
        "--use-wandb",
        RAY_EXIT_CODE=7,
        PIDS_TO_KILL=stale.pid,
        AGENT_SERVER_PORT=port,
        AGENT_SERVER_TRAIN_CONCURRENCY=10,
        N_SAMPLES_PER_PROMPT=4,
    )
    code, said = run.end()

    assert code == 7, said
    assert stale.wait() == -signal.SIGKILL
    assert run.events() == [f"entrypoint 0 {run.folder}/relax", "ray job submit", "ray job stop"]
    ready = json.loads((run.folder / "record/readyz.json").read_text())
    assert run.job == f"mini_swe_agent-{ready['run_id']}"
    assert run.job in run.arguments("stop")
    assert ready["slots"]["train"]["capacity"] == 10

    arguments = run.arguments()
    work = run.folder / "save/mini_swe_agent/agent_server"
    assert _values(arguments, "--agent-env") == [
        f"AGENT_SERVER_URL=http://127.0.0.1:{port}",
        f"AGENT_CLIENT_TRACE_DIR={work}/client_events",
    ]
    assert _values(arguments, "--agent-command") == [f"bash {ROOT}/agent_client.sh"]
    assert _values(arguments, "--agent-cwd") == [str(ROOT)]
    assert _values(arguments, "--runtime-env-json") == ['{"env_vars": {"PYTHONPATH": "/Megatron"}}']
    assert _values(arguments, "--global-batch-size") == ["64"]
    assert arguments[-1] == "--use-wandb"
    (prompts,) = _values(arguments, "--prompt-data")
    rows = [json.loads(line) for line in Path(prompts).read_text().splitlines()]
    assert rows == [{"input": [{"role": "user", "content": ""}]}] * 50
    assert os.listdir(Path(prompts).parent) == ["agent_server", Path(prompts).name]

    assert run.server() is None
    log = (work / "server.log").read_text()
    assert f"run={ready['run_id']}" in log
    assert log.endswith("stopped\n")
    (warning,) = [line for line in said.splitlines() if "slots" in line]
    assert "16 groups x 4 samples = 64 sessions share AGENT_SERVER_TRAIN_CONCURRENCY=10 slots" in warning


@pytest.mark.parametrize(
    ("number", "send", "code"),
    [(signal.SIGINT, os.killpg, 130), (signal.SIGTERM, os.kill, 143)],
    ids=["Ctrl-C", "SIGTERM to the script alone"],
)
def test_a_signal_stops_training_server_and_sandboxes(
    launch: Launcher, number: int, send: Callable[[int, int], None], code: int
) -> None:
    endpoint, in_sandbox = Endpoint(), threading.Event()

    def after_the_first_command() -> str:
        in_sandbox.set()
        return "sleep 1000"

    endpoint.script("key", ["true", after_the_first_command])
    run = launch(RAY_EXIT_CODE="wait", OMP_NUM_THREADS=24)
    run.await_training()
    url = _values(run.arguments(), "--agent-env")[0].removeprefix("AGENT_SERVER_URL=")
    body = request_body(base_url=endpoint.url, api_key="key")
    assert httpx.post(f"{url}/sessions", json=body, trust_env=False).status_code == 201
    assert in_sandbox.wait(120)
    server = run.server()
    assert server is not None
    assert {f"{name}_NUM_THREADS=2" for name in ("OMP", "MKL", "OPENBLAS")} <= set(
        Path(f"/proc/{server}/environ").read_text().split("\0")
    )
    family = _family(server)
    assert len(family) > 1

    send(run.process.pid, number)
    ended, said = run.end()
    endpoint.close()

    assert ended == code, said
    assert run.events()[-1] == "ray job stop"
    assert run.job in run.arguments("stop")
    assert [pid for pid, start in family if _is_alive(pid, start)] == []
    until(lambda: not _processes(str(run.folder)) and not os.listdir(run.folder / "tmp"), "nothing is left")
    log = (run.folder / "save/mini_swe_agent/agent_server/server.log").read_text()
    assert "stopping: SIGTERM" in log
    assert log.endswith("stopped\n")


def test_training_is_stopped_when_its_server_is_lost(launch: Launcher) -> None:
    run = launch(RAY_EXIT_CODE="wait")
    run.await_training()
    server = run.server()
    assert server is not None

    os.kill(server, signal.SIGKILL)
    code, said = run.end()

    assert code == 1
    assert f"{NAME}: the agent server has ended during training; its log is {run.folder}/save/" in said
    assert run.events()[-1] == "ray job stop"
    until(lambda: _processes(str(run.folder)) == [], "the server's janitor is done")


def test_the_token_goes_by_file_also_below_another_entrypoint(launch: Launcher) -> None:
    run = launch(AGENT_SERVER_TOKEN="nobody-may-see-this", RELAX_ENTRYPOINT_MODE="spmd", RUNTIME_ENV_JSON="{}")
    code, said = run.end()

    assert code == 0, said
    assert run.events() == ["ray job submit"]
    assert _values(run.arguments(), "--runtime-env-json") == ["{}"]
    (file,) = [word for word in _values(run.arguments(), "--agent-env") if "TOKEN" in word]
    token = run.folder / "record/token"
    assert token.read_text() == "nobody-may-see-this\n"
    assert token.stat().st_mode & 0o777 == 0o600
    assert not Path(file.removeprefix("AGENT_SERVER_TOKEN_FILE=")).exists()
    seen = "".join((run.folder / "record" / name).read_text() for name in ("submit.args", "submit.env")) + said
    assert "nobody-may-see-this" not in seen


def test_another_server_on_the_port(launch: Launcher, serve: Callable[..., Server]) -> None:
    other = serve(Gate(), run_id="yesterday")
    run = launch(AGENT_SERVER_PORT=other.url.rpartition(":")[2])
    code, said = run.end()

    assert code == 1
    assert said.splitlines()[-1] == (
        f"{NAME}: {other.url} is taken by the agent server of another launch (run yesterday): "
        "stop it, or choose another AGENT_SERVER_PORT"
    )
    assert len(run.events()) == 1
    assert other.http.get("/healthz").status_code == 200


def test_a_stranger_on_the_port(launch: Launcher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def greet() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = stranger.accept()
                    with connection:
                        connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                        connection.recv(4096)

        threading.Thread(target=greet, daemon=True).start()
        port = stranger.getsockname()[1]
        run = launch(AGENT_SERVER_PORT=port)
        code, said = run.end()
        stranger.shutdown(socket.SHUT_RDWR)

    assert code == 1
    assert said.splitlines()[-1] == (
        f"{NAME}: http://127.0.0.1:{port} is taken by a program that is no agent server: "
        "stop it, or choose another AGENT_SERVER_PORT"
    )
    assert len(run.events()) == 1


def test_a_server_that_does_not_start_shows_its_log(launch: Launcher, tmp_path: Path) -> None:
    run = launch(R2E_DATA_PATH=tmp_path)
    code, said = run.end()

    assert code == 1
    *_, cause, last = said.splitlines()
    assert cause.startswith("    agent_server.py: ")
    assert str(tmp_path) in cause
    assert last.startswith(f"{NAME}: the agent server did not start; its log is {run.folder}/save/")
    assert len(run.events()) == 1


def test_a_dry_run_prints_all_and_starts_nothing(launch: Launcher) -> None:
    run = launch("--use-wandb", "--dry-run", ENABLE_EVAL=1, LR="2e-6", SGLANG_LOAD_FORMAT="none", USE_TIS=0)
    server, training = _dry(run)

    assert server[4:6] == [f"{sys.prefix}/bin/python", f"{ROOT}/agent_server.py"]
    assert _values(server, "--train-group-size") == ["8"]
    assert _values(server, "--work-dir") == [f"{run.folder}/save/mini_swe_agent/agent_server"]
    options = [word for word in training if word.startswith("--")]
    assert len(set(options)) == len(options)
    assert {"--agent-env", "--use-agentic-rollout", "--use-wandb", "--eval-interval"} <= set(options)
    assert not {"--sglang-load-format", "--use-tis", "--agentic-prepare-pool-size"} & set(options)
    assert _values(training, "--lr") == ["2e-6"]
    assert _values(training, "--resource") == ['{"actor": [1, 8], "rollout": [1, 8]}']
    assert _values(training, "--eval-prompt-data") == ["r2e_eval", *_values(training, "--prompt-data")]
    assert _values(training, "--agentic-eval-concurrency") == ["50"]
    assert run.events() == []
    assert not (run.folder / "save").exists()


def test_help_starts_nothing(launch: Launcher) -> None:
    run = launch("--help", SAVE_DIR=None)
    printed, said = run.process.communicate(timeout=60)

    assert (run.process.returncode, said, run.events()) == (0, "", [])
    assert printed.startswith("Trains a coding agent with Relax: ")
    assert printed.endswith("see setup/training_options.sh.\n")


def test_the_options_of_a_model_and_of_older_generations(launch: Launcher, tmp_path: Path) -> None:
    (tmp_path / "model.sh").write_text('MODEL_ARGS=(--num-layers "${LAYERS_THAT_NOBODY_SET:-4}" --swiglu $NOT_SET)\n')
    server, training = _dry(
        launch(
            "--dry-run",
            RELAX_GENERATION="B",
            ENABLE_EVAL=1,
            N_SAMPLES_PER_EVAL_PROMPT=2,
            EXP_ROOT="relative",
            MODEL_ARGS_FILE=tmp_path / "model.sh",
        )
    )

    assert _values(training, "--num-layers") == ["4"]
    assert "--swiglu" in training
    assert _values(server, "--eval-group-size") == ["2"]
    assert _values(server, "--work-dir") == [f"{Path.cwd()}/relative/agent_server"]
    assert _values(training, "--agentic-prepare-pool-size") == ["0"]
    assert _values(training, "--agentic-eval-prepare-pool-size") == ["50"]
    assert _values(training, "--agentic-tool-call-parser") == ["qwen3_coder"]

    _, training = _dry(launch("--dry-run", RELAX_GENERATION="A"))
    assert not [word for word in training if "parser" in word]


def test_a_server_on_another_machine(launch: Launcher, serve: Callable[..., Server]) -> None:
    other = serve(Gate())
    elsewhere: Mapping[str, str | None] = {
        "AGENT_SERVER_URL": f"{other.url}/",
        "MINI_SWE_AGENT_VENV": None,
        "R2E_DATA_PATH": None,
        "R2E_SIF_DIR": None,
    }
    run = launch(RAY_EXIT_CODE=3, **elsewhere)
    code, said = run.end()

    assert code == 3, said
    assert "starting the agent server" not in said
    assert _values(run.arguments(), "--agent-env")[0] == f"AGENT_SERVER_URL={other.url}"
    assert other.http.get("/readyz").status_code == 200

    refused = launch(ENABLE_EVAL=1, **elsewhere)
    assert refused.end() == (
        1,
        f"{NAME}: warning: {refused.folder}/relax/scripts/models/qwen3.5-35B-A3B.sh is not there: Megatron is not told "
        "the shape of Qwen3.5-35B-A3B; set MODEL_ARGS_FILE to the file of Relax that sets MODEL_ARGS for it\n"
        f"{NAME}: the agent server at {other.url} has no evaluation rows, which ENABLE_EVAL=1 needs\n",
    )
    assert refused.events() == []

    mixed = launch(N_SAMPLES_PER_PROMPT=4, **elsewhere)
    code, said = mixed.end()
    assert code == 1
    assert "gives a row to 8 sessions, but N_SAMPLES_PER_PROMPT=4: start it with " in said
    assert mixed.events() == []

    url = f"http://127.0.0.1:{_free_port()}"
    absent = launch(**{**elsewhere, "AGENT_SERVER_URL": url})
    code, said = absent.end()
    assert code == 1
    assert f"{NAME}: no agent server answers at AGENT_SERVER_URL={url}: curl: (7) " in said
    assert absent.events() == []


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        ([], {"RELAX_DIR": "/usr"}, "RELAX_DIR=/usr is not a Relax checkout: it has no scripts/entrypoint/local.sh"),
        (
            [],
            {"MINI_SWE_AGENT_VENV": "/usr/share"},
            "MINI_SWE_AGENT_VENV=/usr/share is not a virtual environment: it has no bin/python",
        ),
        ([], {"N_SAMPLES_PER_PROMPT": "eight"}, "N_SAMPLES_PER_PROMPT=eight is not a whole number above 0"),
        ([], {"USE_TIS": "yes"}, "USE_TIS=yes is neither 0 nor 1"),
        ([], {"AGENT_SERVER_URL": "here:80"}, "AGENT_SERVER_URL=here:80 is not an http:// or https:// address"),
        (
            ["--agent-env", "HOME=/"],
            {},
            "--agent-env is set already, and Relax takes one occurrence only: use the variable for it "
            "(setup/training_options.sh)",
        ),
    ],
)
def test_what_cannot_work_is_told_before_anything_starts(
    launch: Launcher, arguments: Sequence[str], variables: dict[str, Any], message: str
) -> None:
    run = launch(*arguments, **variables)
    code, said = run.end()

    assert code == 1
    assert said.splitlines()[-1] == f"{NAME}: {message}"
    assert run.events() == []


def _dry(run: Launch) -> tuple[list[str], list[str]]:
    """The words of the two commands that a dry run prints."""
    printed, said = run.process.communicate(timeout=60)
    assert run.process.returncode == 0, said
    head, server, training = printed.replace("# training\n", "# the agent server\n").split("# the agent server\n")
    assert head == ""
    return shlex.split(server.replace("\\\n", "")), shlex.split(training.replace("\\\n", ""))


def _values(words: Sequence[str], option: str) -> list[str]:
    """What stands between an option, which must be there once, and the next."""
    assert words.count(option) == 1, (option, words)
    after = words[words.index(option) + 1 :]
    length = next((n for n, word in enumerate(after) if word.startswith("--")), len(after))
    return list(after[:length])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _processes(text: str) -> list[int]:
    """Processes with this in their command line."""
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            if text.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def _session_of(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid)
    return None


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State, parent and start time of a process."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], int(fields[1]), int(fields[19])
    return None


def _family(ancestor: int) -> set[tuple[int, int]]:
    """A process and all that it and its children have started: process id and start time of each."""
    stats = {pid: stat for pid in _pids() if (stat := _stat(pid))}
    family = {ancestor}
    while more := {pid for pid, (_, parent, _) in stats.items() if parent in family} - family:
        family |= more
    return {(pid, stats[pid][2]) for pid in family}


def _is_alive(pid: int, start: int) -> bool:
    stat = _stat(pid)
    return stat is not None and stat[0] != "Z" and stat[2] == start
