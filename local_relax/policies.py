"""Scripted models. A policy sees a conversation and nothing else; its turn is the number of answers already in it."""

import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from local_relax.errors import internal_error
from local_relax.gold import GoldChange
from local_relax.replies import Call, Reply
from local_relax.rows import Row, Rows
from local_relax.validation import ChatRequest

Script = Callable[[Row], Sequence[Reply]]

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch.txt"


class ScriptedEngine:
    """Plays one script per session. Stateless beside the immutable rows, so any thread may call it."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def start(self, request: ChatRequest, policy: str) -> Future[Reply]:
        future: Future[Reply] = Future()
        try:
            future.set_result(self._reply(request, policy))
        except LookupError as error:
            future.set_exception(internal_error(str(error)))
        return future

    def close(self) -> None:
        """Nothing to release."""

    def _reply(self, request: ChatRequest, policy: str) -> Reply:
        script = SCRIPTS[policy](self._rows.find(_first_user_text(request)))
        turn = [message["role"] for message in request.messages].count("assistant")
        return script[min(turn, len(script) - 1)]  # an agent that goes on after the submission gets it again


def gold(row: Row) -> list[Reply]:
    """Solves the task with the change that solved it in the project's history."""
    change = row.gold()
    files = _quoted(change.files)
    return [
        _run("I will look around first.", "ls -la && git log --oneline -n 5"),
        _run("Which code is this about?", f"grep -n -E '^(class|def) ' {files} | head -n 40"),
        _run("I know what to change.", _apply(change.patch)),
        _run("Does it look right, and does it still import?", f"git diff --stat && {_try_import(change)}"),
        _run("The change is done; I write the patch.", _write_patch(change)),
        _run("I check the patch.", "cat patch.txt"),
        _run("I submit.", SUBMIT),
    ]


def noop(_: Row) -> list[Reply]:
    """Looks around and submits nothing."""
    return [
        _run("I will look around first.", "ls -la && git log --oneline -n 5"),
        _run("There is nothing to do; the patch is empty.", "git diff > patch.txt"),
        _run("I submit.", SUBMIT),
    ]


def wrong(_: Row) -> list[Reply]:
    """Submits a change that is harmless and does not help."""
    choose = "f=$(git ls-files '*.py' | grep -v -i -e test -e setup.py | head -n 1)"
    edit = f'{choose} && printf \'\\n# This module was reviewed.\\n\' >> "$f" && echo "changed $f"'
    return [
        _run("I will look around first.", "ls -la && git log --oneline -n 5"),
        _run("A comment will do.", edit),
        _run("The change is done; I write the patch.", "git diff > patch.txt"),
        _run("I check the patch.", "cat patch.txt"),
        _run("I submit.", SUBMIT),
    ]


def chatty(row: Row) -> list[Reply]:
    """Does everything an agent must bear, never three format errors in a row, and then what `gold` does."""
    return [
        Reply(text="I think I understand the task. Let me describe my plan before I start."),
        Reply(text="I list the files.", calls=[Call({"cmd": "ls"})]),
        _run("That was the wrong argument.", "ls"),
        _run("I print too much.", "seq 1 200000"),
        Reply(
            text="I wait too long.",
            calls=[Call({"command": "echo before the pause; sleep 86400; echo after the pause"})],
            reasoning="How long is too long?",
        ),
        _run("", "cat /no/such/file"),
        Reply(text="To begin with, let me say this again and again, and", cut=True),
        _run("Several commands at once.", "pwd", "git status --short | head", "echo one; echo two >&2"),
        *gold(row),
    ]


SCRIPTS: dict[str, Script] = {"gold": gold, "noop": noop, "wrong": wrong, "chatty": chatty}

REWARDS = {"gold": 1.0, "chatty": 1.0, "noop": 0.0, "wrong": 0.0}


def _run(text: str, *commands: str) -> Reply:
    return Reply(text=text, calls=[Call({"command": command}) for command in commands])


def _apply(patch: str) -> str:
    mark = "END_OF_PATCH"
    while mark in patch:
        mark += "_"
    return f"git apply --whitespace=nowarn <<'{mark}'\n{patch}{mark}\n"


def _write_patch(change: GoldChange) -> str:
    """`git diff` leaves new files out unless the index knows of them."""
    announce = f"git add --intent-to-add -- {_quoted(change.created)} && " if change.created else ""
    return f"{announce}git diff -- {_quoted(change.files)} > patch.txt"


def _try_import(change: GoldChange) -> str:
    """Import the first module that is there, from where its package starts."""
    for path in change.files:
        if path.endswith(".py") and path not in change.deleted:
            parts = path.removesuffix(".py").split("/")
            top = [parts.pop(0)] if parts[0] in ("src", "lib") and len(parts) > 1 else []
            module = ".".join(part for part in parts if part != "__init__")
            return f"PYTHONPATH={'/'.join(top) or '.'} python -c {shlex.quote(f'import {module}')}"
    return "true"


def _quoted(paths: Sequence[str]) -> str:
    return " ".join(map(shlex.quote, paths))


def _first_user_text(request: ChatRequest) -> str:
    content = next((message["content"] for message in request.messages if message["role"] == "user"), "")
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content)
