"""The process that `harness.py` asks: the only one that imports swebench, which costs seconds and reads settings.

Run as `python -I harness_worker.py ANSWERS_FD SECONDS` in an empty folder of its own. A line "<number>" on standard
input stands for `request.json` in that folder; the answer is `answer.json` and the same line on ANSWERS_FD. What
swebench prints goes to standard error. At the end of its input the process removes its folder and ends.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

REQUEST, ANSWER, LOG = "request.json", "answer.json", "log.txt"


def refuse_sockets(event: str, _arguments: tuple[object, ...]) -> None:
    """An audit hook: grading needs no network, and a release that thinks otherwise must not get one."""
    if event.startswith("socket."):
        raise PermissionError(f"the grading process has no network: {event}")


def ungradable(rows: list[dict[str, Any]]) -> dict[str, str]:
    from swebench.harness.constants import EvalType
    from swebench.harness.log_parsers import PARSER_REGISTRY

    reasons: dict[str, str] = {}
    for row in rows:
        parser = _parser(row)
        if parser is None:
            reasons[row["instance_id"]] = f"the harness has no log parser for {row['repo']}: name one as log_parser"
        elif parser not in PARSER_REGISTRY:
            reasons[row["instance_id"]] = f"log_parser {parser!r} is none of the harness'"
        elif row["eval_type"] not in {kind.value for kind in EvalType}:
            reasons[row["instance_id"]] = f"eval_type {row['eval_type']!r} is none of the harness'"
    return reasons


def script(row: dict[str, Any]) -> str:
    return str(_spec(row).eval_script)


def grade(row: dict[str, Any], patch: str) -> dict[str, Any]:
    """The harness' report, with `denied`, the tests that it lets pass though the log says that they failed as well; or
    `parser_error`: what the parser did not survive.
    """
    from swebench.harness.grading import get_eval_report

    spec = _spec(row)
    try:
        reports = get_eval_report(spec, {"instance_id": spec.instance_id, "model_patch": patch}, LOG, True)
        report = dict(reports[spec.instance_id])
        return {**report, "denied": _denied(spec) if report["resolved"] else []}
    except Exception as error:
        return {"parser_error": f"{type(error).__name__}: {error}"}


def _denied(spec: Any) -> list[str]:
    """Required tests that some line of the log reports as failed.

    To the parsers the last line about a test counts, and code under test can print one more when the test runner is
    done. An honest runner tells a failure behind a success, never the other way round.
    """
    from swebench.harness.grading import _resolve_case
    from swebench.harness.log_parsers import PARSER_REGISTRY

    parse = PARSER_REGISTRY[spec.log_parser]
    failed: dict[str, str] = {}
    for line in Path(LOG).read_text().split("\n"):
        if "FAIL" in line or "ERROR" in line or line.rstrip().endswith((" F", " E")):
            failed |= {name: status for name, status in parse(line, spec).items() if status in ("FAILED", "ERROR")}
    return [name for name in (*spec.FAIL_TO_PASS, *spec.PASS_TO_PASS) if _resolve_case(name, failed)]


def _parser(row: dict[str, Any]) -> str | None:
    from swebench.harness.log_parsers.python import MAP_REPO_TO_PARSER_PY

    known = MAP_REPO_TO_PARSER_PY.get(row["repo"])
    return row["log_parser"] or (known.__name__ if known else None)


def _spec(row: dict[str, Any]) -> Any:
    from swebench.harness.utils import make_test_spec

    # No image is run here: the field only has to be there.
    return make_test_spec({**row, "image": "", "log_parser": _parser(row) or ""})


_CALLS: dict[str, Callable[..., Any]] = {"ungradable": ungradable, "script": script, "grade": grade}


def main() -> None:
    answers, seconds = int(sys.argv[1]), int(sys.argv[2])
    sys.addaudithook(refuse_sockets)
    # The kernel ends a parser that never ends, should nobody be left to do it.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    try:
        import dotenv

        # swebench reads a .env file from any folder above its own.
        dotenv.load_dotenv = lambda *_, **__: False
        import swebench.harness.grading
        import swebench.harness.utils  # noqa: F401
    except Exception as error:
        os.write(answers, f"{type(error).__name__}: {error}".replace("\n", " ").encode() + b"\n")
        return
    os.write(answers, b"ready\n")
    signal.alarm(0)
    for number in sys.stdin:
        signal.alarm(seconds)
        call, arguments = json.loads(Path(REQUEST).read_text())
        Path(ANSWER).write_text(json.dumps(_CALLS[call](*arguments)))
        signal.alarm(0)
        os.write(answers, number.encode())


if __name__ == "__main__":
    folder = Path.cwd()
    try:
        main()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
