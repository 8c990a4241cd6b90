"""Settings from flags and variables, and what the server's command line does without starting."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import agent_server
from swe_rollout.errors import StartupError
from swe_rollout.settings import Settings, load_settings, strangers, variable_of

ROOT = Path(agent_server.__file__).parent


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """The two variables that must be set, and no other."""
    for name in Settings.model_fields:
        monkeypatch.delenv(variable_of(name), raising=False)
    monkeypatch.setenv("R2E_DATA_PATH", str(tmp_path))
    monkeypatch.setenv("R2E_SIF_DIR", str(tmp_path))
    return monkeypatch


def test_a_flag_beats_its_variable_which_beats_the_default(
    variables: pytest.MonkeyPatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sifs").mkdir()
    variables.setenv("AGENT_SERVER_TRAIN_CONCURRENCY", "3")
    variables.setenv("AGENT_SERVER_EVAL_CONCURRENCY", "3")
    variables.setenv("AGENT_SERVER_SHUFFLE", "0")
    variables.setenv("AGENT_SERVER_SEED", "")
    variables.setenv("AGENT_SERVER_CONFIG", "model.model_kwargs.stop='a b' extra.yaml")
    settings = load_settings(["--eval-concurrency", "5", "--r2e-sif-dir", "sifs", "--work-dir", "~/work"])
    assert (settings.train_concurrency, settings.eval_concurrency) == (3, 5)
    assert (settings.shuffle, settings.seed, settings.port) == (False, 42, 8765)
    assert settings.config == ("model.model_kwargs.stop=a b", "extra.yaml")
    assert (settings.r2e_data_path, settings.r2e_sif_dir) == (tmp_path, tmp_path / "sifs")
    assert settings.work_dir == Path.home() / "work"
    assert load_settings(["--config", "a=b", "--config", "c.yaml"]).config == ("a=b", "c.yaml")
    assert load_settings([]).run_id != load_settings([]).run_id


@pytest.mark.parametrize(
    ("flags", "values", "line"),
    [
        (["--prot", "1"], {}, "unrecognized arguments: --prot 1 (--help lists the settings)"),
        (["--port"], {}, "argument --port: expected one argument (--help lists the settings)"),
        (["--port", "65536"], {}, "--port '65536': Input should be less than or equal to 65535"),
        ([], {"AGENT_SERVER_PORT": "http"}, "AGENT_SERVER_PORT='http': Input should be a valid integer"),
        ([], {"AGENT_SERVER_TRAIN_CONCURRENCY": "0"}, "AGENT_SERVER_TRAIN_CONCURRENCY='0': Input should be greater"),
        ([], {"AGENT_SERVER_SHUFFLE": "maybe"}, "AGENT_SERVER_SHUFFLE='maybe': Input should be a valid boolean"),
        ([], {"AGENT_SERVER_RECORD_TTL_SECONDS": "inf"}, "AGENT_SERVER_RECORD_TTL_SECONDS='inf': Input should be a f"),
        ([], {"AGENT_SERVER_CONFINEMENT": "none"}, "AGENT_SERVER_CONFINEMENT='none': Input should be 'auto', 'unpriv"),
        ([], {"AGENT_SERVER_CONFIG": "a='b"}, 'AGENT_SERVER_CONFIG="a=\'b": No closing quotation'),
        ([], {"R2E_SIF_DIR": "/no/such"}, "R2E_SIF_DIR='/no/such': no such folder"),
        (
            [],
            {"R2E_DATA_PATH": "", "R2E_SIF_DIR": ""},
            "R2E_DATA_PATH (or --r2e-data-path) is not set: The folder that holds the parquet files of the training "
            "and evaluation rows; R2E_SIF_DIR (or --r2e-sif-dir) is not set: ",
        ),
        (["--tmp-dir", "/tmp/a:b,c"], {}, "AGENT_SERVER_TMP_DIR='/tmp/a:b,c' is used as a mount and cannot contain"),
        (
            ["--max-sessions", "127"],
            {},
            "AGENT_SERVER_MAX_SESSIONS=127 is less than the 128 sessions that AGENT_SERVER_TRAIN_CONCURRENCY and ",
        ),
    ],
)
def test_a_wrong_setting_is_named_with_its_value_in_one_line(
    variables: pytest.MonkeyPatch, flags: list[str], values: dict[str, str], line: str
) -> None:
    for name, value in values.items():
        variables.setenv(name, value)
    with pytest.raises(StartupError) as refused:
        load_settings(flags)
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


def test_a_server_that_others_can_reach_needs_a_token(variables: pytest.MonkeyPatch) -> None:
    closed = (
        "AGENT_SERVER_HOST={} serves other machines: set AGENT_SERVER_TOKEN or AGENT_SERVER_TOKEN_FILE, or pass "
        "--insecure if everybody there may use the server"
    )
    for host in ("0.0.0.0", "::", "10.1.2.3", "trainer.local", "localhost.example"):
        variables.setenv("AGENT_SERVER_HOST", host)
        with pytest.raises(StartupError) as refused:
            load_settings([])
        assert str(refused.value) == closed.format(host)
    for host in ("127.0.0.1", "127.8.9.1", "::1", "localhost"):
        assert load_settings(["--host", host]).secret() is None
    assert load_settings(["--insecure"]).secret() is None
    assert load_settings(["--insecure", "true"]).insecure
    variables.setenv("AGENT_SERVER_TOKEN", "s3cret-!~")
    settings = load_settings([])
    assert settings.secret() == "s3cret-!~"
    assert "s3cret" not in f"{settings!r} {settings} {settings.model_dump_json()}"


def test_a_token_that_cannot_be_used_is_refused_and_not_shown(variables: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "token"
    words = "one word of visible ASCII characters"

    def refusal(*flags: str) -> str:
        with pytest.raises(StartupError) as refused:
            load_settings(flags)
        assert "s3cret" not in str(refused.value)
        assert "\n" not in str(refused.value)
        return str(refused.value)

    assert refusal("--token-file", str(file)) == f"AGENT_SERVER_TOKEN_FILE={file}: No such file or directory"
    assert refusal("--token-file", str(tmp_path)) == f"AGENT_SERVER_TOKEN_FILE={tmp_path}: Is a directory"
    for content in (b"", b" \n", b"s3cret two", b"s3cret\nline", "s3cret-ü".encode()):
        file.write_bytes(content)
        assert refusal("--token-file", str(file)) == f"AGENT_SERVER_TOKEN_FILE={file} does not hold {words}"
    file.write_bytes(b"\xff\xfe")
    assert refusal("--token-file", str(file)) == f"AGENT_SERVER_TOKEN_FILE={file}: is not text"
    file.write_text("s3cret\n")
    assert load_settings(["--token-file", str(file)]).secret() == "s3cret"
    variables.setenv("AGENT_SERVER_TOKEN", "s3cret s3cret")
    assert refusal() == f"AGENT_SERVER_TOKEN is not {words}"
    variables.setenv("AGENT_SERVER_TOKEN", "s3cret")
    both = "AGENT_SERVER_TOKEN and AGENT_SERVER_TOKEN_FILE are both set; keep one of them"
    assert refusal("--token-file", str(file)) == both
    assert "unrecognized arguments: --token" in refusal("--token", "x")


def run_server(*flags: str, **values: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "agent_server.py", *flags],
        cwd=ROOT,
        env={**os.environ, **values},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_help_lists_every_setting_with_its_variable_and_default() -> None:
    result = run_server("--help")
    assert (result.returncode, result.stderr) == (0, "")
    words = " ".join(result.stdout.split())
    for name in Settings.model_fields:
        assert (f"--{name.replace('_', '-')} " in words) == (name != "token")
        assert variable_of(name) in words
    assert "AGENT_SERVER_TRAIN_CONCURRENCY, default: 64. Training sessions that may have a sandbox" in words


def test_a_server_that_must_not_start_says_why_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        work = ("--work-dir", str(tmp_path / "work"))
        relative = ("--config", "environment.cwd=testbed")
        calls = (("--port", port), ("--port", "0", *work), ("--bogus",), (*relative, *work))
        results = [run_server(*flags) for flags in calls]
    assert [result.returncode for result in results] == [2, 2, 2, 2]
    assert [result.stdout for result in results] == ["", "", "", ""]
    taken, no_rows, bogus, no_tree = (result.stderr for result in results)
    assert taken.startswith(f"agent_server.py: cannot listen on 127.0.0.1 port {port}: Address already in use; ")
    assert no_rows.startswith("agent_server.py: no file matches ")
    assert str(tmp_path) in no_rows
    assert bogus == "agent_server.py: unrecognized arguments: --bogus (--help lists the settings)\n"
    assert no_tree.startswith("agent_server.py: configuration: environment.cwd='testbed': ")
    assert no_tree.endswith("must be an absolute path of the sandbox\n")
    assert [text.count("\n") for text in (taken, no_rows, bogus, no_tree)] == [1, 1, 1, 1]


def test_the_agent_is_found_here_but_its_imports_are_not_paid_for_before() -> None:
    code = """
import sys, agent_server
print(sorted({"flask", "waitress", "minisweagent", "litellm", "pyarrow", "httpx"} & sys.modules.keys()))
print(agent_server.MyAgent.__module__, hasattr(agent_server, "YourAgent"))
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.stdout.splitlines() == ["[]", "swe_rollout.agent False"], result.stderr


def test_a_mistyped_variable_is_named() -> None:
    given = {"AGENT_SERVER_TRAIN_CONCURENCY", "AGENT_SERVER_URL", "AGENT_SERVER_PORT", "AGENT_SERVER_QQQ", "PATH"}
    assert strangers(given) == [
        "AGENT_SERVER_QQQ is no setting and has no effect",
        "AGENT_SERVER_TRAIN_CONCURENCY is no setting and has no effect; is it AGENT_SERVER_TRAIN_CONCURRENCY?",
    ]
