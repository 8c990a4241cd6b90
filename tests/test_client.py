"""agent_client.sh as the trainer launches it, against a real server with scripted rollouts."""

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from scripted import Gate, Process, Server
from waiting import until

import agent_server
from swe_rollout.outcome import Outcome

Serve = Callable[..., Server]
Start = Callable[..., Process]
ROOT = Path(agent_server.__file__).parent
KILL_GRACE_SECONDS = 5
"""What the trainer leaves a client between SIGTERM and SIGKILL."""
SESSION = "agentic_session_shard_0.session-4f1d"


@dataclass
class Front:
    """Stands before the application: notes the calls, and can hold one back or lose its answer."""

    calls: list[str] = field(default_factory=list)
    hold: str = ""
    """`before` or `after` the application has had the create call."""
    lose: int = 0
    """So many create calls reach the application, but their answers are lost."""
    status: str = "502 Bad Gateway"

    def __post_init__(self) -> None:
        self.held = threading.Event()
        self.let_go = threading.Event()

    def __call__(self, app: Any) -> Any:
        def through(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            call = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
            self.calls.append(call)
            if call == "POST /sessions":
                if self.hold == "before":
                    self._hold()
                answer = list(app(environ, lambda *_: None)) if self.lose or self.hold == "after" else None
                if self.lose:
                    self.lose -= 1
                    start_response(self.status, [("Retry-After", "7")])
                    return [b"lost"]
                if answer is not None:
                    self._hold()
                    start_response("201 Created", [("Content-Type", "application/json")])
                    return answer
            result: Iterable[bytes] = app(environ, start_response)
            return result

        return through

    def _hold(self) -> None:
        self.held.set()
        self.let_go.wait(60)

    @property
    def cancels(self) -> list[str]:
        return [call for call in self.calls if call.endswith("/cancel")]


class Client:
    """One run of the script in a process group and folder of its own."""

    def __init__(self, folder: Path, url: str, **environment: str | None) -> None:
        folder.mkdir()
        self.folder = folder
        self.output = folder / "session_output.json"
        values: dict[str, str | None] = {
            **os.environ,
            "AGENT_SERVER_URL": url,
            "RELAX_SESSION_ID": SESSION,
            "RELAX_GROUP_ID": "train:prepare_group_0",
            "RELAX_ROLLOUT_MODE": "train",
            "RELAX_BASE_URL": "http://127.0.0.1:9/agentic_api/",
            "RELAX_OUTPUT_JSON": str(self.output),
            **environment,
        }
        self.process = subprocess.Popen(
            [shutil.which("bash") or "bash", str(ROOT / "agent_client.sh")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in values.items() if value is not None},
            start_new_session=True,
        )

    def end(self, timeout: float = 60) -> tuple[int, str]:
        """Exit code and what was said on stderr; nothing may be left of the process group or in the folder."""
        out, err = self.process.communicate(timeout=timeout)
        assert out == ""
        with pytest.raises(ProcessLookupError):
            os.killpg(self.process.pid, 0)
        assert [path for path in self.folder.iterdir() if path != self.output] == []
        return self.process.returncode, err


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Client]]:
    """Starts clients; ends their process groups after the test, whatever has become of them."""
    clients: list[Client] = []

    def start(url: str, **environment: str | None) -> Client:
        clients.append(Client(tmp_path / f"io-{len(clients)}", url, **environment))
        return clients[-1]

    yield start
    for client in clients:
        if client.process.poll() is None:
            os.killpg(client.process.pid, signal.SIGKILL)
            client.process.communicate()


Launch = Callable[..., Client]


def test_a_completed_session(serve: Serve, launch: Launch, tmp_path: Path) -> None:
    gate, front = Gate(), Front()
    server = serve(gate, front=front)
    client = launch(server.url + "//", AGENT_CLIENT_TRACE_DIR=str(tmp_path / "traces"))
    [session] = gate.wait_for(1)
    request = session.request
    assert (request.session_id, request.api_key.get_secret_value()) == (SESSION, SESSION)
    assert (request.group_id, request.mode) == ("train:prepare_group_0", "train")
    assert request.base_url == "http://127.0.0.1:9/agentic_api/"
    assert (request.request_id or "").startswith(f"req-{SESSION}-")
    gate.open()
    assert client.end() == (0, "")
    assert json.loads(client.output.read_text()) == {
        "metadata": {
            "exit_status": "Submitted",
            "submission": "diff",
            "n_calls": 3,
            "task_id": "calc__000000000000",
            "model_seconds": 1.25,
            "scoring_seconds": 0.5,
            "total_seconds": round(session.timings["total"], 6),
        },
        "reward": 1.0,
    }
    assert not (tmp_path / "traces").exists()
    assert front.cancels == []


def test_a_submission_of_megabytes_arrives_byte_for_byte(serve: Serve, launch: Launch) -> None:
    submission = "diff --git a/ü b/ü\r\n+\t\"\\ 'x' $(id) `id` %s\x00\x7f \U0001f600\r\n\n" * 80_000 + "no newline"
    gate = Gate(Outcome.completed("Submitted", 0.0, submission=submission))
    gate.open()
    client = launch(serve(gate).url)
    assert client.end() == (0, "")
    output = json.loads(client.output.read_text())
    assert output["metadata"]["submission"] == submission
    assert output["reward"] == 0.0


@pytest.mark.parametrize(
    ("outcome", "exit_code", "cause"),
    [
        (Outcome.failed("SandboxError: cannot\nstart \"x\" 'y' $z"), 1, "SandboxError: cannot start \"x\" 'y' $z"),
        (Outcome.cancelled("Relax discarded the session"), 143, "Relax discarded the session"),
    ],
)
def test_a_session_without_result_leaves_one_line_and_a_trace(
    serve: Serve, launch: Launch, tmp_path: Path, outcome: Outcome, exit_code: int, cause: str
) -> None:
    gate = Gate(outcome)
    gate.open()
    server = serve(gate)
    client = launch(server.url, AGENT_CLIENT_TRACE_DIR=str(tmp_path / "a" / "traces"))
    session_id = f"ses_{server.sessions.epoch}_1"
    assert client.end() == (exit_code, f"agent_client: session {session_id} {outcome.status}: {cause}\n")
    assert not client.output.exists()
    [trace] = (tmp_path / "a" / "traces").iterdir()
    assert trace.read_text().count("\n") == 1
    told = json.loads(trace.read_text())
    del told["time"]
    assert told == {
        "status": outcome.status,
        "cause": cause,
        "session_id": session_id,
        "client_session_id": SESSION,
        "group_id": "train:prepare_group_0",
        "mode": "train",
    }


@pytest.mark.parametrize("reward", [None, float("nan"), float("inf"), True])
def test_a_reward_that_is_no_finite_number_is_refused(serve: Serve, launch: Launch, reward: Any) -> None:
    gate = Gate(Outcome("completed", "Submitted", reward=reward))
    gate.open()
    client = launch(serve(gate).url)
    code, said = client.end(timeout=120)
    assert code == 1
    assert said.startswith("agent_client: ")
    assert said.count("\n") == 1
    assert not client.output.exists()


def test_all_that_is_missing_is_named_at_once(launch: Launch, tmp_path: Path) -> None:
    nothing = launch("", RELAX_GROUP_ID=None, RELAX_BASE_URL="", PATH=str(tmp_path))
    assert nothing.end() == (
        2,
        "agent_client: not set: AGENT_SERVER_URL RELAX_GROUP_ID RELAX_BASE_URL; not installed: curl jq\n",
    )
    assert launch("server:8765").end() == (
        2,
        "agent_client: AGENT_SERVER_URL=server:8765 is not an http:// or https:// address\n",
    )
    output = tmp_path / "missing" / "output.json"
    assert launch("http://server:8765", RELAX_OUTPUT_JSON=str(output)).end() == (
        2,
        f"agent_client: cannot write beside RELAX_OUTPUT_JSON={output}: is its folder there and writable?\n",
    )


def test_what_the_server_refuses_is_not_tried_again(serve: Serve, launch: Launch) -> None:
    front = Front()
    client = launch(serve(Gate(), front=front).url, RELAX_ROLLOUT_MODE="eval")
    code, said = client.end()
    assert code == 1
    assert said.startswith("agent_client: the server refused the session (HTTP 409): no eval rows are loaded: ")
    assert front.calls.count("POST /sessions") == 1


@pytest.mark.parametrize("signals", [["TERM"], ["INT"], ["HUP"], ["TERM", "TERM"], ["TERM", "INT"]])
@pytest.mark.parametrize("moment", ["poll", "create is answered late", "create arrives late"])
def test_a_signal_cancels_the_session_once_and_at_once(
    serve: Serve, launch: Launch, tmp_path: Path, signals: list[str], moment: str
) -> None:
    gate = Gate()
    front = Front(hold={"create is answered late": "after", "create arrives late": "before"}.get(moment, ""))
    server = serve(gate, front=front)
    client = launch(server.url, AGENT_CLIENT_TRACE_DIR=str(tmp_path / "traces"))
    if front.hold:
        assert front.held.wait(60)
    else:
        gate.wait_for(1)
    for name in signals:
        # To the whole group, as the trainer does.
        os.killpg(client.process.pid, signal.Signals[f"SIG{name}"])
    assert client.end(timeout=KILL_GRACE_SECONDS) == (143, "")
    front.let_go.set()
    [cancel] = front.cancels
    view = server.ended(cancel.split("/")[2])
    assert (view["status"], view["client_session_id"]) == ("cancelled", SESSION)
    assert not client.output.exists()
    [trace] = (tmp_path / "traces").iterdir()
    assert json.loads(trace.read_text())["status"] == "cancelled"


def test_a_signal_is_heeded_when_the_folder_is_gone_already(serve: Serve, launch: Launch) -> None:
    gate = Gate()
    server = serve(gate)
    client = launch(server.url)
    [session] = gate.wait_for(1)
    while client.folder.exists():  # the client may still be writing to it
        shutil.rmtree(client.folder, ignore_errors=True)
    client.process.terminate()
    assert client.process.wait(KILL_GRACE_SECONDS) == 143
    assert server.ended(session.id)["status"] == "cancelled"


@pytest.mark.parametrize("server", ["refuses", "takes no connection", "answers nothing"])
def test_a_signal_while_the_server_cannot_be_reached(launch: Launch, server: str) -> None:
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        if server != "refuses":
            listener.listen(0 if server == "takes no connection" else 16)
        if server == "takes no connection":
            for filler in (first, second):
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
        client = launch(f"http://127.0.0.1:{listener.getsockname()[1]}")
        if server == "answers nothing":
            listener.accept()[0].close()
        else:
            until(lambda: any(command.startswith(("curl", "sleep")) for command in _commands(client)))
        client.process.terminate()
        assert client.end(timeout=KILL_GRACE_SECONDS) == (143, "")


def test_the_session_id_is_in_nobodys_arguments(serve: Serve, launch: Launch) -> None:
    """It is the key to the trainer's API, and arguments are public on the machine."""
    front = Front(hold="before")
    gate = Gate()
    client = launch(serve(gate, front=front).url)
    assert front.held.wait(60)
    seen = _commands(client)
    front.let_go.set()
    gate.wait_for(1)
    until(lambda: any("GET /sessions/" in call for call in front.calls))
    seen += _commands(client)
    assert any(command.startswith("curl") for command in seen)
    assert SESSION not in "".join(seen)
    client.process.terminate()
    assert client.end()[0] == 143


def test_the_token_is_sent_and_shown_to_nobody(serve: Serve, launch: Launch, tmp_path: Path) -> None:
    token = """a"b\\c$d'e`f"""
    gate, front = Gate(), Front()
    server = serve(gate, front=front, token=token)
    (tmp_path / "token").write_text(f"{token}\n")
    clients = [
        launch(server.url, AGENT_SERVER_TOKEN=token),
        launch(server.url, AGENT_SERVER_TOKEN_FILE=str(tmp_path / "token")),
    ]
    gate.wait_for(2)
    until(lambda: sum("GET /sessions/" in call for call in front.calls) == 2)
    seen = [command for client in clients for command in _commands(client)]
    assert any(command.startswith("curl") for command in seen)
    assert not [command for command in seen if token in command]
    clients[0].process.terminate()
    assert clients[0].end() == (143, "")
    assert len(front.cancels) == 1
    gate.open()
    assert clients[1].end() == (0, "")

    said = "the server refused the session (HTTP 401): this call needs `Authorization: Bearer` with the server's token"
    assert launch(server.url, AGENT_SERVER_TOKEN="wrong").end() == (1, f"agent_client: {said}\n")
    refused = {
        "the token is not one word of visible ASCII characters": {"AGENT_SERVER_TOKEN": 'x\nurl = "http://other"'},
        "cannot read AGENT_SERVER_TOKEN_FILE=/no/such": {"AGENT_SERVER_TOKEN_FILE": "/no/such"},
    }
    for line, environment in refused.items():
        assert launch(server.url, **environment).end() == (2, f"agent_client: {line}\n")


def _commands(client: Client) -> list[str]:
    """The arguments of every process in the client's group."""
    commands = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == client.process.pid:
                commands.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (OSError, ProcessLookupError):
            continue
    return commands


@pytest.fixture
def pauses(tmp_path: Path) -> Path:
    """A folder for PATH with a `sleep` that takes no time and notes in `pauses` what it was asked for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sleep").write_text(f'#!/bin/sh\necho "$1" >>{folder}/pauses\n')
    (folder / "sleep").chmod(0o755)
    return folder


def test_a_lost_answer_is_asked_for_again_and_opens_nothing_twice(serve: Serve, launch: Launch, pauses: Path) -> None:
    gate, front = Gate(), Front(lose=2, status="503 Service Unavailable")
    gate.open()
    server = serve(gate, front=front)
    client = launch(server.url, PATH=f"{pauses}:{os.environ['PATH']}")
    assert client.end() == (0, "")
    assert front.calls.count("POST /sessions") == 3
    assert server.parts.pools["train"].counts()["leased"] == 1
    assert [float(pause) // 1 for pause in (pauses / "pauses").read_text().split()] == [7, 7]


def test_waits_for_as_long_as_the_server_is_full(serve: Serve, launch: Launch, pauses: Path) -> None:
    gate, front = Gate(), Front()
    server = serve(gate, front=front, train_concurrency=1, eval_concurrency=1, max_sessions=2)
    for _ in range(2):
        server.open()
    client = launch(server.url, PATH=f"{pauses}:{os.environ['PATH']}")
    until(lambda: front.calls.count("POST /sessions") > 2 + 25)
    assert client.process.poll() is None
    gate.open()
    assert client.end() == (0, "")
    assert {float(pause) // 1 for pause in (pauses / "pauses").read_text().split()} == {5}


def test_gives_up_after_twenty_failures_in_a_row(launch: Launch, pauses: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections = []

        def hang_up() -> None:
            while len(connections) < 21:
                connection, _ = listener.accept()
                connections.append(connection.recv(4096).split(b" ")[0])
                connection.close()

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = launch(url, PATH=f"{pauses}:{os.environ['PATH']}", AGENT_CLIENT_TRACE_DIR=str(tmp_path / "traces"))
        code, said = client.end()
        thread.join(60)
    assert code == 1
    assert said.startswith(f"agent_client: gave up on {url} after 20 failures in a row: curl: ")
    # The last one is the cancel: the server may know of the session.
    assert connections == [b"POST"] * 21
    waits = [float(pause) for pause in (pauses / "pauses").read_text().split()]
    assert len(waits) == 19
    assert waits[0] < 1
    assert all(5 <= wait < 5.3 for wait in waits[5:])
    assert len(list((tmp_path / "traces").iterdir())) == 1


@pytest.mark.parametrize("work_dir", ["kept", "lost"])
def test_the_server_is_killed_and_started_again(start: Start, launch: Launch, tmp_path: Path, work_dir: str) -> None:
    first = start()
    client = launch(first.url)
    # A client that has had no answer yet would open a session on the new server, and rightly.
    until(lambda: any("session_id" in answer.read_text() for answer in client.folder.glob(".*/answer")))
    [session] = first.http.get("/sessions").json()["sessions"]
    first.end()
    if work_dir == "lost":
        shutil.rmtree(tmp_path / "work")
    assert start(port=first.port).url == first.url
    code, said = client.end()
    assert code == 1
    if work_dir == "kept":
        cause = "the server was restarted while the session was open; its sandbox died with the server"
        assert said == f"agent_client: session {session['session_id']} failed: {cause}\n"
    else:
        lost = f"the server does not know session {session['session_id']} any more: it was restarted"
        assert said == f"agent_client: {lost}\n"
