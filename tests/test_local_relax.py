"""Relax's side, tried with real HTTP and real agent processes: small bash programs that use curl and jq."""

import contextlib
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import requests
from waiting import until

from data.parsed_commit import parse_commit
from data.repository import git
from local_relax.chat_api import ChatApi, ModelLimits
from local_relax.errors import AgentExecutionError, StepError
from local_relax.generation import Generation, generation_a, generation_b, generation_c
from local_relax.groups import GroupRunner
from local_relax.launcher import AgentCommand
from local_relax.model_proxy import ModelProxy
from local_relax.output import read_output, read_strict_output, scalar_reward
from local_relax.policies import ScriptedEngine
from local_relax.replies import Engine
from local_relax.results import GroupResult
from local_relax.rows import Rows
from local_relax.sessions import SessionTable

ROOT = Path(__file__).resolve().parent.parent
STATEMENT = "half(3) returns 1, it should return 1.5.\n\nIt's the `//` that does it."

# Asks once: `ask FILE` posts FILE to the chat API, puts the answer into answer.json and prints the status.
ASK = """
set -u
ask() {
    curl -sS -o "$RELAX_SESSION_IO_DIR/answer.json" -D "$RELAX_SESSION_IO_DIR/headers" -w '%{http_code}\\n' \\
        -H "Authorization: Bearer $RELAX_SESSION_ID" -d @"$1" "${RELAX_BASE_URL%/}/v1/chat/completions"
}
first="$RELAX_SESSION_IO_DIR/first.json"
jq -n --arg task "$TASK" '{messages: [{role: "system", content: "You work."}, {role: "user", content: $task}],
    tools: [{type: "function", function: {name: "bash", parameters: {type: "object"}}}]}' > "$first"
deliver() { jq -n --argjson reward "$1" '{reward: $reward, metadata: {n_calls: 1}}' > "$RELAX_OUTPUT_JSON"; }
"""

# Plays a whole task: runs what the model asks for in a clone of the repository, until it submits.
WORKER = (
    ASK
    + """
test "$(cat "$RELAX_INPUT_JSON")" = '{"messages":[]}' || exit 90
test "$PASSED" = "a=b c" || exit 91
git clone -q "$REPOSITORY" "$RELAX_SESSION_IO_DIR/testbed" && cd "$RELAX_SESSION_IO_DIR/testbed" || exit 92
cp "$first" ../chat.json
n_calls=0 exit_status=LimitsExceeded bad=0
add() { jq "$@" ../chat.json > ../next.json && mv ../next.json ../chat.json; }
while [ $n_calls -lt 30 ] && [ $exit_status = LimitsExceeded ]; do
    [ "$(ask ../chat.json)" = 200 ] || { cat ../answer.json; exit 1; }
    n_calls=$((n_calls + 1))
    add --slurpfile a ../answer.json '.messages += [$a[0].choices[0].message]'
    if ! jq -e '.choices[0].message.tool_calls[0].function.arguments | fromjson | .command' ../answer.json > /dev/null
    then
        bad=$((bad + 1))
        [ $bad -lt 3 ] || exit_status=RepeatedFormatError
        add '.messages += [{role: "user", content: "Call the tool."}]'
        continue
    fi
    bad=0
    for index in $(jq '.choices[0].message.tool_calls | keys | .[]' ../answer.json); do
        jq -r --argjson i "$index" '.choices[0].message.tool_calls[$i].function.arguments | fromjson | .command' \\
            ../answer.json > ../command
        timeout 2 bash ../command < /dev/null > ../seen 2>&1
        code=$?
        if [ $code = 0 ] && [ "$(head -n 1 ../seen)" = COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT ]; then
            exit_status=Submitted
            tail -n +2 ../seen > ../submission
        fi
        head -c 2000 ../seen > ../shown
        add --argjson i "$index" --slurpfile a ../answer.json --rawfile out ../shown --arg code $code \\
            '.messages += [{role: "tool", tool_call_id: $a[0].choices[0].message.tool_calls[$i].id,
                            content: ($code + "\\n" + $out)}]'
    done
done
git reset -q --hard && git clean -qfd
reward=0
if [ -s ../submission ] && git apply ../submission; then
    [ "$(python3 -c 'from pkg import fresh, half; print(half(3), fresh)')" = "1.5 True" ] && [ ! -e pkg/old.py ] \\
        && reward=1
fi
jq -n --argjson reward $reward --arg status $exit_status --argjson calls $n_calls \\
    '{reward: $reward, metadata: {exit_status: $status, task_id: "pkg__0123456789ab", n_calls: $calls,
      commands_seconds: 0.5, _hidden: 1, id: 7, note: "text", solved: ($reward == 1)}}' > "$RELAX_OUTPUT_JSON.tmp"
mv "$RELAX_OUTPUT_JSON.tmp" "$RELAX_OUTPUT_JSON"
"""
)


@dataclass(frozen=True)
class Task:
    repository: Path
    data: Path
    """In R2E-Gym's form."""
    swebench_data: Path


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """A repository at its base commit, and rows one of which is solved by changing, adding and deleting files."""
    folder = tmp_path_factory.mktemp("task")
    repository = folder / "repository"
    (repository / "pkg" / "tests").mkdir(parents=True)
    (repository / "pkg" / "__init__.py").write_bytes(
        b"def half(x):\n    return x // 2  # \x0c odd\r\n\n\nfresh = False"
    )
    (repository / "pkg" / "old.py").write_text("gone = True\n")
    (repository / "pkg" / "tests" / "test_half.py").write_text("old = 1\n")
    git(repository, "init", "-q", "-b", "main")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "base")
    source = (repository / "pkg" / "__init__.py").read_bytes()
    source = source.replace(b"//", b"/").replace(b"fresh = False", b"from pkg.new import fresh")
    (repository / "pkg" / "__init__.py").write_bytes(source)
    (repository / "pkg" / "new.py").write_text("fresh = True\nEND_OF_PATCH = 'it''s $HOME `id`'\n")
    (repository / "pkg" / "old.py").unlink()
    (repository / "pkg" / "tests" / "test_half.py").write_text("new = 1\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "solution")
    gold = parse_commit(repository, "main~1", "main")
    patch = git(repository, "diff", "--no-renames", "main~1", "main", "--", ".", ":!pkg/tests")
    git(repository, "reset", "-q", "--hard", "main~1")
    # The parser that made the public rows leaves a surplus context line at the very end.
    sources = [diff for diff in gold["file_diffs"] if "tests" not in diff["header"]["file"]["path"]]
    sources[-1]["hunks"][-1]["line_group"]["all_lines"].append({"content": "", "type": "context"})
    rows = [
        {"problem_statement": "[ISSUE]\nhalf(3)\n[/ISSUE]", "parsed_commit_content": "{}", "commit_hash": "f" * 40},
        {
            "problem_statement": f"Solve it.\n[ISSUE]\n{STATEMENT}\n[/ISSUE]\nThanks",
            "parsed_commit_content": json.dumps(gold),
            "commit_hash": "0123456789abcdef",
        },
    ]
    pq.write_table(
        pa.Table.from_pylist([{**row, "repo_name": "pkg", "prompt": "x"} for row in rows]), folder / "rows.parquet"
    )
    rows = [
        {"instance_id": "pkg__pkg-1", "problem_statement": "half(3)", "patch": "", "FAIL_TO_PASS": "[]"},
        {"instance_id": "pkg__pkg-2", "problem_statement": STATEMENT + "\n", "patch": patch, "FAIL_TO_PASS": "[]"},
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "swebench.parquet")
    return Task(repository, folder / "rows.parquet", folder / "swebench.parquet")


@dataclass
class Relax:
    """All of Relax's side in this process, for one agent program."""

    table: SessionTable
    api: ChatApi
    runner: GroupRunner
    events: list[str] = field(default_factory=list)

    def post(self, token: str, body: Any, route: str = "chat/completions", **options: Any) -> requests.Response:
        return requests.post(
            self.api.base_url + route, headers={"Authorization": f"bearer {token}"}, json=body, timeout=60, **options
        )

    def phases(self) -> list[str]:
        groups = requests.get(self.api.base_url + "debug_state", timeout=60).json()["groups"]
        return [phase for group in groups for phase in group["sessions"]]

    @contextlib.contextmanager
    def running(self, number: int, size: int) -> Iterator[list[GroupResult]]:
        """A group that runs beside the block; its result is there after the block."""
        results: list[GroupResult] = []
        thread = threading.Thread(target=lambda: results.append(self.runner.run(number, ["noop"] * size)))
        thread.start()
        try:
            yield results
        except BaseException:
            self.table.shut("the test has failed")
            raise
        finally:
            thread.join()


@contextlib.contextmanager
def relax(
    engine: Engine,
    program: str = "",
    *,
    build: Callable[[float], Generation] = generation_c,
    agent_timeout: float = 60.0,
    **env: str,
) -> Iterator[Relax]:
    events: list[str] = []
    table = SessionTable(events.append)
    generation = build(0.5)
    api = ChatApi(table, engine, generation, ModelLimits(context=20_000), threads=8)
    agent = AgentCommand(ASK + program, Path("/"), {"TASK": STATEMENT, **env})
    runner = GroupRunner(table, agent, api.base_url, generation, "train", agent_timeout)
    try:
        yield Relax(table, api, runner, events)
    finally:
        table.shut("the test is over")
        api.close()
        events += [f"killed {group}" for group in generation.launcher.close()]
        engine.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def chat(*extra: dict[str, Any], **fields: Any) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
    messages = [{"role": "system", "content": "You work."}, {"role": "user", "content": STATEMENT}, *extra]
    return {"messages": messages, "tools": tools, **fields}


def run_cli(task: Task, tmp_path: Path, program: str, *options: str) -> "subprocess.Popen[str]":
    agent = tmp_path / "agent.sh"
    agent.write_text(program)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "local_relax", "--agent-command", f"bash {agent}", "--data", str(task.data)),
            *("--report", str(tmp_path / "report.json"), *options),
            *("--agent-env", f"REPOSITORY={task.repository}", f"TASK={STATEMENT}", "PASSED=a=b c", f"NOTES={tmp_path}"),
        ],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_command_line_plays_every_policy_to_its_reward(task: Task, tmp_path: Path) -> None:
    run = run_cli(task, tmp_path, WORKER, "--groups", "2", "--group-size", "4", "--concurrency", "2", "--expect")
    output, _ = run.communicate()
    assert run.returncode == 0, output
    report = json.loads((tmp_path / "report.json").read_text())
    sessions = [session for group in report["groups"] for session in group["sessions"]]
    assert [session["policy"] for session in sessions] == ["gold", "noop", "wrong", "chatty"] * 2
    assert {group["group_id"] for group in report["groups"]} == {"train:prepare_group_0", "train:prepare_group_1"}
    assert all(re.fullmatch(r"agentic_session_shard_\d\.session-[0-9a-f]{32}", s["session_id"]) for s in sessions)
    assert [s["samples"][0]["metadata"]["exit_status"] for s in sessions] == ["Submitted"] * 8
    assert [s["turns"] for s in sessions][:4] == [7, 3, 5, 15]
    metrics = report["metrics"]
    assert (metrics["reward/mean"], metrics["solved/max"], metrics["n_calls/min"]) == (0.5, 1.0, 3.0)
    assert {key.partition("/")[0] for key in metrics} == {"reward", "n_calls", "commands_seconds", "solved"}
    assert "pkg__0123456789ab" in output
    assert "commands s" in output
    assert not list((tmp_path / "tmp").iterdir())


def test_the_gold_change_of_a_swebench_row_is_its_patch(task: Task, tmp_path: Path) -> None:
    evaluated = replace(task, data=task.swebench_data)
    run = run_cli(
        evaluated, tmp_path, WORKER, "--mode", "eval", "--group-size", "2", "--policies", "gold,noop", "--expect"
    )
    output, _ = run.communicate()
    assert run.returncode == 0, output
    report = json.loads((tmp_path / "report.json").read_text())
    rewards = {s["policy"]: s["samples"][0]["reward"] for group in report["groups"] for s in group["sessions"]}
    assert rewards == {"gold": 1.0, "noop": 0.0}


def test_command_line_names_the_session_that_broke_the_expectation(task: Task, tmp_path: Path) -> None:
    program = ASK + 'ask "$first"; deliver 0.25\n'
    run = run_cli(task, tmp_path, program, "--mode", "eval", "--group-size", "2", "--policies", "noop,gold", "--expect")
    output, _ = run.communicate()
    assert run.returncode == 1
    assert re.search(r"local_relax: (noop|gold) session \S+ \(slot 0 of eval:r2e_eval:0:prepare_group_[01]\)", output)
    assert "scored 0.25, expected" in output.splitlines()[-1]
    report = json.loads((tmp_path / "report.json").read_text())
    assert [len(group["sessions"]) for group in report["groups"]] == [1, 1]


def test_dropped_groups_are_replaced_and_a_step_ends_what_is_unfinished(task: Task, tmp_path: Path) -> None:
    # Group 0 repeats a request; in group 1 one agent fails; group 2 never ends; groups 3 and 4 are good.
    program = ASK + (
        """
        slot() { mkdir "$NOTES/$RELAX_GROUP_ID.$1" 2>/dev/null; }  # true for one agent of the group
        case "$RELAX_GROUP_ID" in
            *_0) ask "$first" && ask "$first" ;;
            *_1) slot failing && {
                    sibling='.groups[] | select(.group_id == env.RELAX_GROUP_ID).sessions | index("gated")'
                    until curl -s "${RELAX_BASE_URL}debug_state" | jq -e "$sibling" > /dev/null; do sleep 0.05; done
                    echo out of luck >&2
                    exit 7
                }
                body=$(cat "$first") port=${RELAX_BASE_URL#*:*:}
                exec 3<> /dev/tcp/127.0.0.1/${port%%/*}
                # When SIGTERM comes, the answer must already be there to read.
                trap 'read -t 0 -u 3 && cat <&3 > "$NOTES/heard"; exit 0' TERM
                printf 'POST /agentic_api/ HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n' >&3
                printf 'Authorization: Bearer %s\\r\\nContent-Length: %d\\r\\n\\r\\n%s' \\
                    "$RELAX_SESSION_ID" ${#body} "$body" >&3
                sleep 1000 & wait ;;
            *_2) ask "$first"; touch "$NOTES/unfinished"; sleep 1000 ;;
            *) while [ ! -e "$NOTES/unfinished" ]; do sleep 0.05; done; ask "$first" ;;
        esac
        deliver 1
        """
    )
    options = ["--groups", "2", "--group-size", "2", "--policies", "noop", "--refills", "2", "--step-groups", "1"]
    run = run_cli(task, tmp_path, program, *options)
    output, _ = run.communicate()
    assert run.returncode == 0, output
    groups = {g["group_id"].rpartition("_")[2]: g for g in json.loads((tmp_path / "report.json").read_text())["groups"]}
    assert {number: group["ending"] for number, group in groups.items()} == {
        "0": "dropped",
        "1": "dropped",
        "2": "cancelled",
        "3": "committed",
        "4": "committed",
    }
    assert "2 leaves with a response" in groups["0"]["reason"]
    # A login shell may have words of its own in between.
    assert "agent exited with code 7: " in groups["1"]["reason"]
    assert groups["1"]["reason"].endswith("out of luck")
    assert groups["2"]["reason"] == "the step is over"
    heard = (tmp_path / "heard").read_text()
    assert heard.startswith("HTTP/1.1 404 ")
    assert "\nX-Should-Retry: false\n" in heard
    assert '"code": "session_discarded"' in heard
    sessions = [session["session_id"] for group in groups.values() for session in group["sessions"]]
    assert len(set(sessions)) == len(sessions)


def test_too_many_dropped_groups_end_the_run_with_a_clear_line(task: Task, tmp_path: Path) -> None:
    program = "echo no such venv; exit 3"
    run = run_cli(task, tmp_path, program, "--groups", "1", "--group-size", "2", "--refills", "1")
    output, _ = run.communicate()
    assert run.returncode == 1
    last = output.splitlines()[-1]
    assert "gave up after 2 dropped groups" in last
    assert "agent exited with code 3: " in last
    assert last.endswith("no such venv")


def test_a_pause_holds_every_request_and_nobody_is_told(task: Task, tmp_path: Path) -> None:
    pause = ("--pause-after", "3", "--pause-seconds", "0.5")
    run = run_cli(task, tmp_path, WORKER, "--group-size", "2", "--policies", "noop,wrong", "--expect", *pause)
    output, _ = run.communicate()
    assert run.returncode == 0, output
    assert output.index("generation closed after 3 answers") < output.index("generation open again")
    (group,) = json.loads((tmp_path / "report.json").read_text())["groups"]
    assert [session["turns"] for session in group["sessions"]] == [3, 5]
    assert [session["exit_code"] for session in group["sessions"]] == [0, 0]


@pytest.mark.parametrize(("name", "turns", "rewards"), [("A", [3] * 4, [0] * 4), ("B", [7, 3, 5, 15], [1, 0, 0, 1])])
def test_command_line_plays_the_older_generations(
    task: Task, tmp_path: Path, name: str, turns: list[int], rewards: list[float]
) -> None:
    """Without a tool parser no policy gets anywhere. An evaluation group is all samples of a prompt."""
    run = run_cli(task, tmp_path, WORKER, "--generation", name, "--mode", "eval", "--groups", "2", "--expect")
    output, _ = run.communicate()
    assert run.returncode == 0, output
    report = json.loads((tmp_path / "report.json").read_text())
    groups = sorted(report["groups"], key=lambda group: str(group["group_id"]))
    assert [group["group_id"] for group in groups] == ["0", "1"]
    sessions = [session for group in groups for session in group["sessions"]]
    assert {re.sub("_[0-9]+_", "_N_", s["session_id"], count=1) for s in sessions} == {
        f"agentic_session_N_{group}_{slot}" for group in range(2) for slot in range(4)
    }
    assert len({s["session_id"] for s in sessions}) == 8
    assert [s["turns"] for s in sessions] == turns * 2
    assert [s["samples"][0]["reward"] for s in sessions] == rewards * 2
    status = "RepeatedFormatError" if name == "A" else "Submitted"
    assert {s["samples"][0]["metadata"]["exit_status"] for s in sessions} == {status}
    assert not list((tmp_path / "tmp").iterdir())


def test_stop_signal_answers_404_ends_every_process_and_leaves_nothing(task: Task, tmp_path: Path) -> None:
    program = ASK + (
        """
        trap 'echo TERM >> "$NOTES/$$.heard"' TERM
        ask "$first" && touch "$NOTES/$$.asked"
        while :; do ask "$first" >> "$NOTES/$$.heard"; sleep 0.2; done
        """
    )
    run = run_cli(task, tmp_path, program, "--group-size", "2", "--think", "0.1", "--policies", "gold")
    until(lambda: len(list(tmp_path.glob("*.asked"))) == 2)
    run.send_signal(signal.SIGTERM)
    output, _ = run.communicate()
    assert run.returncode == 143, output
    heard = list(tmp_path.glob("*.heard"))
    assert len(heard) == 2
    for notes in heard:
        assert {"TERM", "404"} <= set(notes.read_text().split())
        assert not alive(int(notes.stem))
    assert not list((tmp_path / "tmp").iterdir())


def test_nobody_is_answered_before_all_have_asked(task: Task, tmp_path: Path) -> None:
    program = """
    mkdir "$NOTES/late" 2>/dev/null && while [ ! -e "$NOTES/go" ]; do sleep 0.05; done
    [ "$(ask "$first")" = 200 ] && touch "$NOTES/answered.$$" && deliver 0
    """
    with relax(ScriptedEngine(Rows([task.data])), program, NOTES=str(tmp_path)) as side:
        with side.running(5, 3) as results:
            until(lambda: sorted(side.phases()) == ["gated", "gated", "launched"])
            # Closed generation keeps a complete group gated too.
            side.table.pause()
            (tmp_path / "go").touch()
            until(lambda: side.phases() == ["gated"] * 3)
            assert not list(tmp_path.glob("answered.*"))
            side.table.resume()
        assert results[0].ending == "committed"
        assert results[0].warm_seconds is not None
        assert len(list(tmp_path.glob("answered.*"))) == 3
        assert side.phases() == []


def test_timeout_counts_active_time_and_no_member_of_a_group_survives(task: Task, tmp_path: Path) -> None:
    hanging = """
    trap '' TERM
    sleep 1000 & echo $! > "$NOTES/child.$$"
    echo $$ > "$NOTES/leader.$$"
    ask "$first"
    while :; do wait; done
    """
    with (
        relax(ScriptedEngine(Rows([task.data])), hanging, agent_timeout=1.0, NOTES=str(tmp_path)) as side,
        side.running(0, 1) as results,
    ):
        pass
    assert results[0].ending == "dropped"
    assert results[0].reason == "agents timed out after 1 seconds"
    assert results[0].sessions[0].exit_code is None
    leaving = """
    [ "$(ask "$first")" = 200 ] && deliver 0
    (trap '' TERM; echo $BASHPID > "$NOTES/stubborn"; while :; do sleep 1000; done) &
    sleep 1000 & echo $! > "$NOTES/mild"
    while [ ! -e "$NOTES/stubborn" ]; do sleep 0.05; done
    """
    with (
        relax(ScriptedEngine(Rows([task.data])), leaving, NOTES=str(tmp_path)) as side,
        side.running(0, 1) as results,
    ):
        pass
    assert results[0].ending == "committed"
    noted = [int(file.read_text()) for file in tmp_path.iterdir()]
    assert len(noted) == 4
    assert not any(alive(pid) for pid in noted)


def test_the_clock_of_a_group_stands_still_while_generation_is_closed(task: Task, tmp_path: Path) -> None:
    program = """
    ask "$first" && touch "$NOTES/asked"
    while [ ! -e "$NOTES/go" ]; do sleep 0.05; done
    jq --slurpfile a "$RELAX_SESSION_IO_DIR/answer.json" '.messages += [$a[0].choices[0].message,
        {role: "tool", tool_call_id: $a[0].choices[0].message.tool_calls[0].id, content: "x"}]' "$first" > ../next
    [ "$(ask ../next)" = 200 ] && deliver 0
    """.replace("../next", "$RELAX_SESSION_IO_DIR/next.json")
    with relax(ScriptedEngine(Rows([task.data])), program, NOTES=str(tmp_path)) as side:
        with side.running(0, 1) as results:
            until((tmp_path / "asked").exists)
            side.table.pause()
            (group,) = side.table.leased_groups()
            active = group.active_seconds(time.monotonic())
            (tmp_path / "go").touch()
            until(lambda: side.phases() == ["turn 2"])
            assert group.active_seconds(time.monotonic() + 1e6) == active
            assert group.sessions[0].turns == 1
            side.table.resume()
        assert results[0].ending == "committed"
        assert results[0].sessions[0].turns == 2
        assert group.active_seconds(time.monotonic()) > active


def test_the_older_launcher_signals_once_and_forgets(task: Task, tmp_path: Path) -> None:
    """The folder goes while the agent still handles its signal, and nothing but the end of the run kills it."""
    stubborn = """
    trap 'touch "$NOTES/heard"' TERM
    echo "$RELAX_SESSION_IO_DIR" > "$NOTES/folder"
    echo $$ > "$NOTES/leader"
    ask "$first"
    while :; do sleep 0.1; done
    """
    engine = ScriptedEngine(Rows([task.data]))
    with relax(engine, stubborn, build=generation_b, agent_timeout=1.0, NOTES=str(tmp_path)) as side:
        with side.running(0, 1) as results:
            pass
        leader = int((tmp_path / "leader").read_text())
        assert results[0].reason == "agents timed out after 1 seconds"
        assert [session.exit_code for session in results[0].sessions] == [None]
        assert not Path((tmp_path / "folder").read_text().strip()).exists()
        until((tmp_path / "heard").exists)
        assert alive(leader)
    assert side.events[-1] == f"killed {leader}"
    assert not alive(leader)

    # What is left in the group is not touched, and a process that holds a pipe holds the session.
    leaving = """
    [ "$(ask "$first")" = 200 ] && deliver 0
    (while [ ! -e "$NOTES/go" ]; do sleep 0.05; done; echo late) &
    sleep 1000 > /dev/null 2>&1 & echo $! > "$NOTES/mild"
    echo $BASHPID > "$NOTES/left"
    echo oops >&2
    exit 3
    """
    with relax(engine, leaving, build=generation_b, NOTES=str(tmp_path)) as side:
        with side.running(0, 1) as results:
            left = int(until(lambda: (tmp_path / "left").exists() and (tmp_path / "left").read_text()))
            until(lambda: not alive(left))
            assert not results
            (tmp_path / "go").touch()
        assert str(results[0].reason).endswith("agent exited with code 3: late\noops")
        mild = int((tmp_path / "mild").read_text())
        assert alive(mild)
        os.kill(mild, signal.SIGKILL)


def test_an_agent_that_never_asks(task: Task) -> None:
    """It ends a training run in generation A; in the others its group is dropped."""
    engine = ScriptedEngine(Rows([task.data]))
    for program, words in (("deliver 0", "before any chat request"), ("exit 4", "exited with code 4")):
        for build in (generation_b, generation_c):
            with relax(engine, program, build=build) as side:
                result = side.runner.run(0, ["noop", "noop"])
                assert (result.ending, words in str(result.reason)) == ("dropped", True)
        with relax(engine, program, build=generation_a) as side, pytest.raises(StepError, match=words):
            side.runner.run(0, ["noop", "noop"])


def test_older_requests_are_checked_field_by_field(task: Task) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    speechless = {"role": "assistant", "content": None, "tool_calls": [call]}
    refused: list[tuple[Any, str]] = [
        ([], "body"),
        ({}, "messages"),
        (chat({"role": "tool", "content": " "}), "messages"),
        (chat({"role": "tool", "content": ""}), "messages"),
        (chat({"role": "assistant", "content": ""}), "messages"),
        (chat({"role": "developer", "content": "x"}), "messages"),
        (chat(tools=["bash"]), "tools"),
        (chat(max_completion_tokens=0), "max_completion_tokens"),
        (chat(top_logprobs=1), "top_logprobs"),
        (chat(n=2), "n"),
        (chat(stream=True), "stream"),
        (chat(functions=[{}]), "functions"),
        (chat(function_call="auto"), "function_call"),
    ]
    refused_by_a = [
        (chat(tool_choice="auto"), "tool_choice"),
        (chat(parallel_tool_calls=True), "parallel_tool_calls"),
        (chat(speechless), "messages"),
    ]
    arguments = {"role": "assistant", "tool_calls": [{**call, "function": {"name": "bash", "arguments": {}}}]}
    refused_by_b = [
        (chat(arguments), "messages"),
        (chat({"role": "tool", "content": "x", "tool_call_id": ""}), "messages"),
    ]
    harmless = chat(n=1, stream=False, tool_choice="none", parallel_tool_calls=False, max_tokens="no", model=3)
    with relax(ScriptedEngine(Rows([task.data])), build=generation_a) as side:
        session = side.table.open_group("0", 0, [("token", "gold")]).sessions[0]
        for body, _ in refused + refused_by_a:
            answer = side.post("token", body)
            assert (answer.status_code, list(answer.json())) == (400, ["detail"]), body
        denied = requests.post(side.api.base_url, json=chat(), timeout=60)
        assert (denied.status_code, list(denied.json())) == (401, ["detail"])
        gone = side.post("other", chat())
        assert (gone.status_code, gone.headers["x-should-retry"]) == (404, "false")
        assert gone.json()["error"]["code"] == "session_discarded"
        lost = side.post("token", {"messages": []})
        assert (lost.status_code, lost.json()["error"]["code"]) == (500, "internal_error")
        assert "x-should-retry" not in lost.headers
        long = side.post("token", chat({"role": "user", "content": "word " * 20_000}))
        assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")

        first = side.post("token", harmless).json()
        assert "model" not in first
        assert "token" in first["id"]
        message = first["choices"][0]["message"]
        assert set(message) == {"role", "content"}
        assert "<tool_call>" in message["content"]
        assert first["choices"][0]["finish_reason"] == "stop"
        # All but role and content falls away before histories are compared.
        assert side.post("token", chat({**message, "tool_calls": [call]}, {"role": "user", "content": "?"})).ok
        side.table.check_export(session, read_strict_output(Path("/nonexistent")))

    with relax(ScriptedEngine(Rows([task.data])), build=generation_b) as side:
        first_session, second_session = side.table.open_group("0", 0, [("a", "chatty"), ("b", "chatty")]).sessions
        for body, param in refused + refused_by_b:
            answer = side.post("a", body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body
        history: list[dict[str, Any]] = []
        with ThreadPoolExecutor(2) as pool:
            opening = chat(tool_choice="auto", parallel_tool_calls=True, model="m", temperature=1)
            opened = [answer.json() for answer in pool.map(lambda token: side.post(token, opening), "ab")]
        assert opened[0]["model"] == "m"
        history = [opened[0]["choices"][0]["message"], {"role": "user", "content": "?"}]
        seen: list[dict[str, Any]] = []
        for _ in range(5):
            message = side.post("a", chat(*history)).json()["choices"][0]["message"]
            seen.append(message)
            assert side.post("b", chat(*history)).ok
            answers = [{"role": "tool", "content": "x", "tool_call_id": asked["id"]} for asked in message["tool_calls"]]
            history += [message, *answers]
        assert "reasoning_content" in seen[3]
        assert seen[4]["content"] is None
        assert seen[4]["tool_calls"][0]["function"]["arguments"] == '{"command": "cat /no/such/file"}'
        side.table.check_export(first_session, read_strict_output(Path("/nonexistent")))
        # Null is not an empty text, and arguments are text: to spell them anew is to change the history.
        changed = [{**message, "content": message["content"] or ""} for message in history]
        assert side.post("a", chat(*history)).ok
        assert side.post("b", chat(*changed)).ok
        side.table.check_export(first_session, read_strict_output(Path("/nonexistent")))
        with pytest.raises(AgentExecutionError, match="2 leaves with a response"):
            side.table.check_export(second_session, read_strict_output(Path("/nonexistent")))


def test_requests_are_checked_field_by_field(task: Task) -> None:
    text = {"role": "user", "content": "x"}
    call = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}

    def with_arguments(arguments: Any) -> dict[str, Any]:
        return {"role": "assistant", "tool_calls": [{**call, "function": {"name": "bash", "arguments": arguments}}]}

    refused: list[tuple[Any, str]] = [
        ([], "body"),
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        (chat({"role": "developer", "content": "x"}), "messages"),
        (chat({"role": "user", "content": ""}), "messages"),
        (chat({"role": "tool", "content": None}), "messages"),
        (chat({"role": "tool", "content": "x", "tool_call_id": ""}), "messages"),
        (chat({"role": "assistant", "content": " "}), "messages"),
        (chat({"role": "assistant", "content": None, "tool_calls": []}), "messages"),
        (chat({**text, "tool_calls": [call]}), "messages"),
        (chat(with_arguments("[]")), "messages"),
        (chat(with_arguments('{"command": "ls')), "messages"),
        (chat(with_arguments('{"a": 1, "a": 2}')), "messages"),
        (chat(with_arguments('{"a": NaN}')), "messages"),
        (chat(tools={}), "tools"),
        (chat(tools=["bash"]), "tools"),
        (chat(chat_template_kwargs=[]), "chat_template_kwargs"),
        (chat(chat_template_kwargs={"tokenize": False}), "chat_template_kwargs"),
        (chat(max_completion_tokens=0), "max_completion_tokens"),
        (chat(max_completion_tokens=True), "max_completion_tokens"),
        (chat(max_tokens="9"), "max_tokens"),
        (chat(stop=[1]), "stop"),
        (chat(seed="1"), "seed"),
        (chat(logprobs=1), "logprobs"),
    ]
    with relax(ScriptedEngine(Rows([task.data]))) as side:
        session = side.table.open_group("g", 0, [("token", "noop")]).sessions[0]
        for body, param in refused:
            answer = side.post("", body)  # a bad body is found before bad credentials
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), body
            assert answer.json()["error"]["code"] == "invalid_request_error"
        broken = requests.post(side.api.base_url, data="{", timeout=60)
        assert (broken.status_code, broken.json()["error"]["param"]) == (400, "body")
        denied = requests.post(side.api.base_url, json=chat(), headers={"Authorization": "Basic x"}, timeout=60)
        assert (denied.status_code, denied.json()["error"]["type"]) == (401, "authentication_error")
        unknown = side.post("other", chat())
        assert (unknown.status_code, unknown.headers["x-should-retry"]) == (404, "false")
        assert unknown.json()["error"]["code"] == "session_discarded"
        assert requests.post(side.api.base_url + "/chat/completions", json=chat(), timeout=60).status_code == 404
        assert requests.get(side.api.base_url + "v1/models", timeout=60).json()["data"][0]["id"] == "local-relax"
        assert requests.get(side.api.base_url + "healthz", timeout=60).ok
        assert session.requests == 0

        long = side.post("token", chat({"role": "user", "content": "word " * 20_000}))
        assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert "maximum context length is 20000 tokens" in long.json()["error"]["message"]
        lost = side.post("token", {"messages": [text]})
        assert (lost.status_code, lost.json()["error"]["code"]) == (500, "internal_error")
        assert session.turns == 0


def test_a_turn_on_the_wire_and_how_history_forks(task: Task) -> None:
    ignored = {"temperature": 2, "n": 5, "tool_choice": "auto", "parallel_tool_calls": True, "top_logprobs": 3}
    with relax(ScriptedEngine(Rows([task.data]))) as side:
        group = side.table.open_group("g", 0, [("a", "gold"), ("b", "gold"), ("c", "chatty"), ("d", "gold")])
        # The barrier counts a request whose sender is gone, and its answer is committed all the same.
        body = json.dumps(chat()).encode()
        head = (
            f"POST /agentic_api/ HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer d\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", int(side.api.base_url.split(":")[2].split("/")[0]))) as gone:
            gone.sendall(head.encode() + body)
            until(lambda: "gated" in side.phases())
        answers: dict[str, requests.Response] = {}

        def ask(token: str) -> None:
            answers[token] = side.post(token, chat(model={"any": 1}, **ignored), stream=False)

        threads = [threading.Thread(target=ask, args=(token,)) for token in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: group.sessions[3].turns == 1)

        first = answers["a"].json()
        message = first["choices"][0]["message"]
        assert first["choices"][0]["finish_reason"] == "tool_calls"
        assert first["model"] == {"any": 1}
        assert first["usage"]["total_tokens"] == first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
        assert message["tool_calls"][0]["function"]["arguments"] == '{"command":"ls -la && git log --oneline -n 5"}'
        assert re.fullmatch("call_[0-9a-f]{24}", message["tool_calls"][0]["id"])
        assert message == answers["b"].json()["choices"][0]["message"]
        assert answers["c"].json()["choices"][0]["finish_reason"] == "stop"

        # Going on from an exact echo is one line; extra keys and null instead of "" do not matter.
        seen = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "", "extra": 1}
        assert side.post("a", chat(message, seen)).ok
        side.table.check_export(group.sessions[0], read_output(Path("/nonexistent")))
        # Repeating a request, or changing what was sent, is not.
        assert side.post("b", chat()).ok
        assert side.post("c", chat(answers["c"].json()["choices"][0]["message"], {"role": "user", "content": "?"})).ok
        assert side.post("c", chat({"role": "user", "content": "edited"})).ok
        assert side.post("d", chat(seed=1)).ok
        for session in group.sessions[1:]:
            with pytest.raises(AgentExecutionError, match="2 leaves with a response"):
                side.table.check_export(session, read_output(Path("/nonexistent")))

        cut = side.post("a", chat(message, {**seen, "content": "b"}, max_completion_tokens=3)).json()["choices"][0]
        assert (cut["finish_reason"], len(cut["message"]["content"])) == ("length", 12)
        without_tools = side.post("a", chat(tools=[])).json()["choices"][0]
        assert without_tools["finish_reason"] == "stop"
        assert "<tool_call>" in without_tools["message"]["content"]

        side.table.finish(group.sessions[0])
        assert side.post("a", chat()).json()["error"]["code"] == "session_discarded"


def test_real_model_in_place_of_a_script_and_buffered_stream(task: Task) -> None:
    """The model behind the proxy is another chat API with a script."""
    with relax(ScriptedEngine(Rows([task.data]))) as model:
        model.table.open_group("g", 0, [("key", "gold")])
        proxy = ModelProxy(model.api.base_url, "org/policy", "key", response_limit=100)
        with relax(proxy) as side:
            session = side.table.open_group("g", 0, [("token", "org/policy")]).sessions[0]
            lines = side.post("token", chat(stream=True)).text.split("\n\n")
            assert lines[0] == ": connected"
            assert lines[2:] == ["data: [DONE]", ""]
            chunk = json.loads(lines[1].removeprefix("data: "))
            assert chunk["object"] == "chat.completion.chunk"
            assert chunk["choices"][0]["finish_reason"] == "tool_calls"
            assert chunk["choices"][0]["delta"]["tool_calls"][0]["index"] == 0
            assert session.turns == 1

            # Discarding ends a call that the model has not answered yet.
            model.table.pause()
            answers: list[requests.Response] = []
            asking = threading.Thread(target=lambda: answers.append(side.post("token", chat(seed=2))))
            asking.start()
            until(lambda: any(turn.abort for turn in list(session.in_flight)))
            side.table.discard(session.group, 60)
            asking.join()
            assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (404, "session_discarded")
            model.table.resume()


RECORD = {"name": "main", "messages": [{"role": "user", "content": "x"}], "reward": 2}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", None),
        (" \n", None),
        ('{"reward": 1}', 1.0),
        ('{\n  "metadata": {"a": [1]},\n  "reward": true,\n  "other": 0\n}\n', 1.0),
        ('{"reward": NaN}', math.nan),
        ('{"reward": {"score": 0.5, "extra": 1}}', 0.5),
        (json.dumps(RECORD), 2.0),
        (json.dumps(RECORD) + "\n\n" + json.dumps({**RECORD, "name": "other"}) + "\n", 2.0),
        ('{"metadata": {}}', None),
        ("[]", "expected a JSON object, got list"),
        ("3", "expected a JSON object, got int"),
        ('{"reward": "1"}', "reward must be"),
        ('{"metadata": []}', "metadata must be an object"),
        ('{"reward": 1}\n{"reward": 1}', "must be an object with messages"),
        ('{"reward": 1', "neither one JSON object nor JSON lines"),
        (json.dumps({**RECORD, "name": ""}), "non-empty name"),
        (json.dumps({**RECORD, "messages": []}), "zero supported messages"),
        (json.dumps(RECORD) + "\n" + json.dumps(RECORD), "same name"),
        ("\udcff", "not UTF-8"),
    ],
)
def test_output_file_forms(tmp_path: Path, text: str, wanted: float | str | None) -> None:
    file = tmp_path / "session_output.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    if isinstance(wanted, str):
        with pytest.raises(AgentExecutionError, match=wanted):
            read_output(file)
        return
    output = read_output(file)
    reward = output.records[0].reward if output.records else output.reward
    if wanted is None:
        with pytest.raises(StepError, match="no reward model"):
            scalar_reward(reward, None)
    else:
        assert scalar_reward(reward, "score") == pytest.approx(wanted, nan_ok=True)


def test_older_output_files_hold_two_keys_or_nothing(tmp_path: Path) -> None:
    file = tmp_path / "session_output.json"
    assert read_strict_output(file) == read_output(file)
    for text, words in {
        "": "not JSON",
        "[]": "got list",
        '{"reward": 1, "note": 1}': "unknown keys note",
        json.dumps(RECORD): "unknown keys messages, name",
        '{"reward": 1}\n{"reward": 1}': "not JSON",
        '{"reward": "1"}': "reward must be",
        '{"metadata": []}': "metadata must be an object",
    }.items():
        file.write_text(text)
        with pytest.raises(AgentExecutionError, match=words):
            read_strict_output(file)
    file.write_text('{\n"metadata": {"a": 1}, "reward": NaN}\n')
    output = read_strict_output(file)
    assert math.isnan(scalar_reward(output.reward, None))
    assert output.metadata == {"a": 1}


def test_agent_environment_keeps_the_reserved_prefix_and_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="RELAX_BASE_URL"):
        AgentCommand("true", tmp_path, {"RELAX_BASE_URL": "x"})
    with pytest.raises(ValueError, match="is not a folder"):
        AgentCommand("true", tmp_path / "missing")
