"""The sandbox against real Apptainer: bash's own meaning, its limits, its walls, and nothing left behind."""

import contextlib
import dataclasses
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import until

from swe_rollout.cancellation import Cancellation
from swe_rollout.errors import AgentFault, Cancelled, ImageError, SandboxError, StartupError
from swe_rollout.sandbox import processes
from swe_rollout.sandbox.channel import OUTPUT_LIMIT_BYTES, CommandResult
from swe_rollout.sandbox.confinement import Confinement, choose
from swe_rollout.sandbox.limits import Limits
from swe_rollout.sandbox.probe import open_scratch, try_sandbox
from swe_rollout.sandbox.sandbox import Sandbox, SandboxHost, running
from swe_rollout.sandbox.scratch import Scratch

USER = "swe-sandbox"

# Each must do in the sandbox exactly what it does under `bash -c` on the host: output and return code.
SAME_AS_BASH = [
    "true",
    "false",
    "echo hello",
    "printf 'no newline at the end'",
    "exit 7",
    "exit 256",
    "(exit 3); echo $?",
    "nosuchcommand",
    "nosuchcommand; echo went on",
    "/etc/passwd",
    "cat /nonexistent",
    "echo out; echo err >&2; echo out again; echo err again >&2",
    "for i in 1 2 3; do echo o$i; echo e$i >&2; done",
    "cat <<'EOF'\na 'quoted' \"here\" $document\nEOF",
    "cat <<EOF\nvalue: $((6 * 7))\nEOF",
    "cat <<-EOF\n\tindented\n\tEOF",
    "cat <<< 'a here string'",
    "echo 'single $HOME' \"double $((1+1))\"",
    "echo a\\\nb",
    "x=5; echo $x; export x; bash -c 'echo $x'",
    "echo ${UNSET_VARIABLE:-default}",
    "set -u; echo $UNSET_VARIABLE",
    "set -e; false; echo never",
    "set -o pipefail; false | true",
    "echo one | tr o 0 | cat",
    "yes | head -3",
    "cat",
    'read line; echo "read $?"',
    "read x </dev/tty; echo $?",
    "echo $0 $# $-",
    "f() { return 4; }; f; echo $?",
    "function g { echo in g; }; g",
    "trap 'echo trapped' EXIT; exit 2",
    "trap 'echo term' TERM; kill -TERM $$; echo after",
    "trap 'echo int' INT; kill -INT $$; echo after",
    "kill -9 $$",
    "kill -TERM $$; echo never",
    "kill -9 0",
    "exec echo replaced",
    "exec nosuchcommand",
    "exec 2>&1; ls /nonexistent",
    "exec >/dev/null; echo unseen; echo seen >&2",
    "(sleep 1 &) ; echo does not wait",
    "sleep 1 & echo also not",
    "nohup sleep 1 >/dev/null 2>&1 & echo in the background",
    "sleep 0.1 & wait; echo waited",
    "diff <(echo a) <(echo b)",
    "arr=(a 'b c' d); echo ${#arr[@]} \"${arr[1]}\"",
    "shopt -s extglob; echo ${x/a/b}",
    "[[ abc =~ ^a(.)c$ ]] && echo ${BASH_REMATCH[1]}",
    "echo $(( 1 / 0 ))",
    "printf '\\xff\\xfe ok\\n'",
    "printf 'a\\0b\\n'",
    "printf 'carriage\\r\\nreturn\\n'",
    "echo 'é ü 漢字'",
    "printf '%0.sé' {1..100000}",
    "head -c 300000 /dev/zero | tr '\\0' x",
    "ulimit -c",
    "umask",
    "echo $SHLVL",
    "pwd; cd /; pwd",
    "cd /nonexistent || echo stays",
    'echo "$OLDPWD"',
    "python3 -c 'import signal; print(signal.getsignal(signal.SIGINT))'",
    "python3 -c 'import sys; print(sys.stdin.read(), sys.stdout.isatty())'",
    "python3 -c 'import os; print(sorted(map(int, os.listdir(\"/proc/self/fd\")))[:3])'",
]


@pytest.fixture(params=["auto", "root"])
def host(request: pytest.FixtureRequest, open_folder: Callable[[], Path]) -> Iterator[SandboxHost]:
    """Both confinements, each with a scratch folder that must be gone in the end."""
    yield from _host(request.param, open_folder)


@pytest.fixture
def safe_host(open_folder: Callable[[], Path]) -> Iterator[SandboxHost]:
    yield from _host("auto", open_folder)


def _host(wanted: str, open_folder: Callable[[], Path]) -> Iterator[SandboxHost]:
    confinement = choose(wanted, USER)
    scratch = Scratch(open_folder(), "test", confinement)
    yield SandboxHost(confinement, scratch)
    scratch.close()
    assert not scratch.folder.exists()
    assert processes.belonging_to(scratch.folder) == []


def run(sandbox: Sandbox, command: str, timeout: float = 60) -> CommandResult:
    return sandbox.run(command, timeout=timeout, cancellation=Cancellation())


def test_commands_mean_what_bash_means(host: SandboxHost, sif: Path, tmp_path: Path) -> None:
    with running(host, sif, Cancellation()) as sandbox:
        for command in SAME_AS_BASH:
            bash = subprocess.run(
                ["bash", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=tmp_path,
                env={"PATH": "/usr/bin:/bin", "LANG": "C", "SHLVL": "0"},
                start_new_session=True,
                check=False,
            )
            expected = bash.stdout.replace(os.fsencode(tmp_path), b"/testbed")
            code = bash.returncode if bash.returncode >= 0 else 128 - bash.returncode
            result = run(sandbox, command)
            assert (result.raw, result.returncode, result.timed_out) == (expected, code, False), command


def test_what_is_not_as_in_bash(safe_host: SandboxHost, sif: Path) -> None:
    """The text is read by the shell instead of passed to it, which shows in two places only."""
    with running(safe_host, sif, Cancellation()) as sandbox:
        assert run(sandbox, "set -x; echo hi").output == "++ echo hi\nhi\n"
        wrong = run(sandbox, "if then")
        assert wrong.returncode == 2
        assert wrong.output.startswith("bash: eval: line 1: syntax error near unexpected token `then'")


def test_long_commands_long_outputs_and_values_as_they_are(host: SandboxHost, sif: Path) -> None:
    values = {
        "A": "x,y",
        "B": "x,C=y",
        "C": '"q=1"',
        "D": "$(echo INJECTED) `id` $HOME",
        "E": "two\nlines\n",
        "F": '-k "a and b"',
        "G": "",
        "H": "back\\slash 'quote'",
    }
    with running(dataclasses.replace(host, environment=values), sif, Cancellation()) as sandbox:
        for name, value in values.items():
            assert run(sandbox, f'printf %s "${name}"').output == value
        environment = run(sandbox, "env").output
        assert not [
            name for name in ("APPTAINER", "SINGULARITY", "LD_LIBRARY_PATH", "PROMPT_COMMAND") if name in environment
        ]

        megabyte = "x" * (1 << 20)
        assert run(sandbox, f"printf %s {megabyte} | wc -c").output == f"{1 << 20}\n"
        assert run(sandbox, f"cat <<'EOF' | wc -c\n{megabyte}\nEOF").output == f"{(1 << 20) + 1}\n"
        # The text stands in no argument list, so a command cannot find itself by it.
        assert (
            run(sandbox, "pgrep -f some_unusual_word || grep -l some_unusual_word /proc/[0-9]*/cmdline").returncode != 0
        )

        much = run(sandbox, "head -c 40000000 /dev/zero | tr '\\0' a; echo the end")
        assert OUTPUT_LIMIT_BYTES < len(much.raw) < OUTPUT_LIMIT_BYTES + 100
        assert much.elided == 40000000 + len("the end\n") - OUTPUT_LIMIT_BYTES
        assert much.output.endswith("aaathe end\n")
        assert f"[{much.elided} bytes left out]" in much.output


def test_a_command_at_its_time_limit_and_the_ones_after(host: SandboxHost, sif: Path) -> None:
    with running(host, sif, Cancellation()) as sandbox:
        run(sandbox, "echo kept > /testbed/file; sleep 4321 & disown")
        for command in (
            "echo early; sleep 9876",
            "echo early; setsid sleep 9876 & wait; sleep 9876",
            "echo early; (setsid nohup sleep 9876 >/dev/null 2>&1 &) ; trap '' TERM INT HUP; while :; do sleep 1; done",
            "echo early; kill -STOP $$",
            "echo early; python3 -c 'import time; time.sleep(77)'; echo late",
        ):
            result = run(sandbox, command, timeout=1.5)
            assert result.timed_out, command
            assert result.output.startswith("early\n"), command
            assert "late" not in result.output
            left = run(sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; cat /testbed/file")
            assert "9876" not in left.output, command
            assert left.output.endswith("kept\n")
            assert "sleep 4321" in left.output, f"an earlier command's background process died with: {command}"


def test_a_fork_bomb_ends_at_the_time_limit(safe_host: SandboxHost, sif: Path) -> None:
    """Also when something older is to be spared; what it may hold is bounded, so the machine lives on."""
    with running(dataclasses.replace(safe_host, limits=Limits(processes=300)), sif, Cancellation()) as sandbox:
        run(sandbox, "sleep 4321 & disown")
        result = run(sandbox, "echo early; :(){ :|:& };: ; sleep 9876", timeout=1.5)
        assert result.timed_out
        assert result.output.startswith("early\n")
        left = run(sandbox, "for p in /proc/[0-9]*; do [ -e $p/exe ] && echo $p; done | wc -l")
        assert int(left.output) < 10


def test_a_command_cannot_end_more_than_its_sandbox(host: SandboxHost, sif: Path) -> None:
    with running(host, sif, Cancellation()) as other, running(host, sif, Cancellation()) as sandbox:
        run(other, "sleep 4321 & disown")
        for command in (
            "pkill -f 'sleep 4321'; kill -9 0",
            "kill -9 -1",
            "kill -9 1; kill -TERM 1; kill -STOP 1; kill -USR1 1",
        ):
            run(sandbox, command)
        assert run(sandbox, "echo lives").output == "lives\n"
        assert "sleep 4321" not in run(sandbox, "cat /proc/[0-9]*/cmdline").output
        assert "4321" in run(other, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").output

        assert "Permission denied" in run(sandbox, "echo nonsense > /proc/1/fd/1").output
        assert "Permission denied" in run(sandbox, "cat /proc/1/mem").output


_FILL_STDIN = """
import os, time
number = max(int(name) for name in os.listdir("/.channel") if name.isdigit())
requests = os.open("/proc/1/fd/0", os.O_WRONLY | os.O_NONBLOCK)
try:
    while True:
        os.write(requests, b"x" * 4096)
except BlockingIOError:
    pass
try:
    while True:
        os.write(requests, b"x")
except BlockingIOError:
    pass
os.write(os.open("/proc/1/fd/1", os.O_WRONLY), b"%d 0 /testbed\\n" % number)
time.sleep(1000)
"""
_BREAK_MEMORY = """
import re
memory = open("/proc/1/mem", "r+b")
for line in open("/proc/1/maps"):
    if " r-xp " in line and "[" not in line:
        start, end = (int(word, 16) for word in line.split()[0].split("-"))
        memory.seek(start)
        memory.write(b"\\xf4" * (end - start))
"""
_LIMIT = "import resource as r; r.prlimit(1, r.RLIMIT_{}, (1, 1))"


@pytest.mark.parametrize(
    "attack",
    [
        _FILL_STDIN,
        _BREAK_MEMORY,
        _LIMIT.format("NPROC"),
        _LIMIT.format("CPU") + "\nimport os\nwhile True: os.kill(1, 10)",
        "import os, time\nwhile True:\n try: os.fork() or time.sleep(1000)\n except OSError: time.sleep(0.01)",
    ],
    ids=["pipe full", "memory", "no processes", "no time", "all processes"],
)
def test_who_breaks_process_one_is_to_blame(host: SandboxHost, sif: Path, attack: str) -> None:
    """The sandbox is lost then, but it is the agent's doing; or the attack does nothing."""
    host = dataclasses.replace(host, limits=Limits(processes=60))
    with running(host, sif, Cancellation()) as sandbox:
        command = f"cat > /tmp/attack.py <<'EOF'\n{attack}\nEOF\ntimeout 8 python3 /tmp/attack.py & sleep 2; kill %1"
        outcomes = []
        for attempt in (command, "echo hi", "echo hi"):
            try:
                outcomes.append(run(sandbox, attempt, timeout=20).output)
            except AgentFault as fault:
                outcomes.append(fault.exit_status)
                break
        assert outcomes[-1] in ("hi\n", "SandboxBroken")


def test_walls(host: SandboxHost, sif: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root inside can neither reach the host nor undo what hides from it."""
    core_pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    monkeypatch.setenv("SECRET_TOKEN", "abc")
    marker = Path(f"/tmp/host-marker-{os.getpid()}")
    marker.write_text("host")
    empty = host.scratch.empty
    try:
        with running(host, sif, Cancellation(), binds=[(empty, "/r2e_tests")]) as sandbox:
            assert run(sandbox, "id -u; grep CapEff /proc/self/status").output.split() == ["0", "CapEff:", "0" * 16]
            for attempt in (
                "echo '|/tmp/evil' > /proc/sys/kernel/core_pattern",
                "echo 1 > /proc/sysrq-trigger",
                "echo 1 > /sys/kernel/mm/ksm/run",
                "touch /sys/fs/cgroup/x",
                "echo 1 | tee /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/*/cgroup.procs",
                "umount /r2e_tests",
                "umount -l /r2e_tests",
                "mount -t tmpfs none /r2e_tests",
                "mount --bind / /mnt",
                "unshare -m true",
                "unshare -Ur umount /r2e_tests",
                "nsenter -t 1 -m ls /r2e_tests/test_1.py",
                "python3 -c \"import os; os.mkdir('/tmp/o'); os.chroot('/proc/1/root')\"",
                "cat /proc/1/root/r2e_tests/test_1.py",
                "mknod /tmp/disk b 8 0",
                "cat /proc/kcore",
                "echo x > /.channel/loop.sh",
                "rm /.channel/loop.sh",
                "touch /etc/hosts-of-host && cat /host",
                "exec 3<>/dev/tcp/127.0.0.1/22",
                "exec 3<>/dev/udp/192.0.2.1/53 && echo x >&3",
            ):
                result = run(sandbox, attempt)
                assert result.returncode != 0, (attempt, result.output)
            seen = run(sandbox, "ls -A /r2e_tests /tmp ~ 2>/dev/null; env; find / -xdev -name 'host-marker*'").output
            assert marker.name not in seen
            assert "SECRET" not in seen
            assert "test_1.py" not in seen
            assert run(sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1").output.split() == ["lo"]
    finally:
        marker.unlink()
    assert Path("/proc/sys/kernel/core_pattern").read_text() == core_pattern


def test_a_layer_holds_renames_and_much_data(host: SandboxHost, sif: Path) -> None:
    with running(host, sif, Cancellation()) as sandbox:
        assert run(sandbox, "head -c 90000000 /dev/zero > /testbed/big; echo $?").output == "0\n"
        moved = run(
            sandbox, "mkdir d && touch d/f && mv d e && ls e && mv /testbed /moved && ls -d /moved/e; echo here"
        )
        assert moved.output == "f\n/moved/e\nhere\n"
        gone = run(sandbox, "pwd")
        assert (gone.output, gone.cwd) == ("/\n", "/")
        assert run(sandbox, "mv /moved /testbed && cat /testbed/.git/HEAD").returncode == 0
        assert run(sandbox, "pwd").output == "/testbed\n"


def _start_and_sleep(sandbox: Sandbox, cancellation: Cancellation) -> None:
    sandbox.start(cancellation)
    sandbox.run("sleep 1000", timeout=2000, cancellation=cancellation)


def test_waiting_can_be_cancelled(safe_host: SandboxHost, sif: Path) -> None:
    """In a command and during a start; a switch that is already turned is seen at once."""
    cancellation = Cancellation()
    with running(safe_host, sif, cancellation) as sandbox:
        timer = threading.Timer(0.3, cancellation.cancel, ["enough"])
        timer.start()
        with pytest.raises(Cancelled, match="enough"):
            sandbox.run("sleep 1000", timeout=2000, cancellation=cancellation)
    for delay in (0.0, 0.02, 0.1):
        cancellation = Cancellation()
        threading.Timer(delay, cancellation.cancel, ["enough"]).start()
        sandbox = Sandbox(safe_host, sif)
        with pytest.raises(Cancelled, match="enough"), contextlib.closing(sandbox):
            _start_and_sleep(sandbox, cancellation)
        sandbox.discard()
        assert processes.belonging_to(sandbox.folder) == []
        assert not sandbox.folder.exists()


def test_a_handle_stands_for_no_other_process() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        handle = processes.ProcessHandle(process.pid)
        with contextlib.closing(handle):
            assert handle.read("stat").startswith(f"{process.pid} (".encode())
            assert handle.send(signal.SIGTERM)
            assert process.wait() == -signal.SIGTERM
            assert (handle.send(signal.SIGTERM), handle.read("stat")) == (False, b"")
    with pytest.raises(OSError, match="No such process"):
        processes.ProcessHandle(process.pid)


def _kill_when(started: Path, pid: int) -> None:
    until(started.exists)
    os.kill(pid, signal.SIGKILL)


def test_a_sandbox_that_dies_from_outside(host: SandboxHost, sif: Path) -> None:
    for victim in ("front", "loop"):
        with running(host, sif, Cancellation()) as sandbox:
            front = processes.belonging_to(sandbox.folder)[0]
            with contextlib.closing(processes.process_one(processes.tree(front))) as process_one:
                loop = process_one.pid
            killer = threading.Thread(
                target=_kill_when, args=[sandbox.layer / "upper/testbed/started", front if victim == "front" else loop]
            )
            killer.start()
            with pytest.raises(SandboxError, match="died while a command ran"):
                run(sandbox, "touch /testbed/started; sleep 1000")
            killer.join()
            with pytest.raises(SandboxError, match="died"):
                run(sandbox, "true")
        assert processes.belonging_to(sandbox.folder) == []


def test_many_starts_at_once(host: SandboxHost, sif: Path) -> None:
    outputs: list[str] = []

    def use(number: int) -> None:
        with running(host, sif, Cancellation()) as sandbox:
            outputs.append(run(sandbox, f"echo {number}").output)

    threads = [threading.Thread(target=use, args=[number]) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outputs) == sorted(f"{number}\n" for number in range(64))
    assert processes.belonging_to(host.scratch.folder) == []
    assert sorted(path.name for path in host.scratch.folder.iterdir()) == ["empty", "home", "lock"]


def test_nothing_is_left_after_kill_9_of_the_server(sif: Path, open_folder: Callable[[], Path]) -> None:
    folder = open_folder()
    loops_before = Path("/proc/mounts").read_text().count("loop")
    server = textwrap.dedent(f"""
        from pathlib import Path
        import time
        from swe_rollout.cancellation import Cancellation
        from swe_rollout.sandbox.confinement import Confinement, choose
        from swe_rollout.sandbox.sandbox import Sandbox, SandboxHost
        from swe_rollout.sandbox.scratch import Scratch
        for wanted in ("auto", "root"):
            confinement = choose(wanted, {USER!r})
            host = SandboxHost(confinement, Scratch(Path({str(folder)!r}), wanted, confinement))
            for _ in range(2):
                sandbox = Sandbox(host, Path({str(sif)!r}))
                sandbox.start(Cancellation())
        print("started", flush=True)
        sandbox.run("sleep 1000 & setsid sleep 1000", timeout=2000, cancellation=Cancellation())
    """)
    process = subprocess.Popen([sys.executable, "-c", server], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    assert len(processes.belonging_to(folder)) > 8
    process.kill()
    process.wait()
    until(lambda: not list(folder.iterdir()) and not processes.belonging_to(folder), "the janitor is done")
    assert Path("/proc/mounts").read_text().count("loop") == loops_before


def test_images_that_cannot_be_used(safe_host: SandboxHost, sif: Path, tmp_path: Path) -> None:
    for name, data, message in (
        ("half.sif", sif.read_bytes()[: sif.stat().st_size // 2], "is cut short"),
        ("empty.sif", b"", "is not a SIF file"),
        ("page.sif", b"<html>429</html>" * 100, "is not a SIF file"),
    ):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(ImageError, match=f"{name} {message}.*build it again"):
            Sandbox(safe_host, path)
    with pytest.raises(ImageError, match=r"missing\.sif cannot be read"):
        Sandbox(safe_host, tmp_path / "missing.sif")
    bad = bytearray(sif.read_bytes())
    bad[40960:200000] = bytes(200000 - 40960)
    damaged = safe_host.scratch.folder / "damaged.sif"
    damaged.write_bytes(bad)
    sandbox = Sandbox(safe_host, damaged)
    with pytest.raises(SandboxError, match=r"damaged\.sif cannot start: \S+"):
        sandbox.start(Cancellation())
    sandbox.discard()


def _try(confinement: Confinement, folder: Path, *images: Path) -> None:
    scratch = open_scratch(folder, "probe", confinement)
    try:
        try_sandbox(SandboxHost(confinement, scratch), *images)
    finally:
        scratch.close()


def test_a_machine_that_cannot_run_sandboxes_is_told_what_to_set(
    sif: Path, tmp_path: Path, open_folder: Callable[[], Path]
) -> None:
    """Each with a real filesystem of the wrong kind, a closed folder, a closed device."""

    def said(wanted: str, folder: Path, *images: Path) -> str:
        confinement = choose(wanted, USER)
        with pytest.raises(StartupError) as caught:
            _try(confinement, folder, sif, *images)
        return str(caught.value)

    with pytest.raises(StartupError, match="there is no user 'nobody-here'"):
        choose("auto", "nobody-here")
    with pytest.raises(StartupError, match="is root; name an ordinary user"):
        choose("auto", "root")

    opened = open_folder()
    closed = opened / "closed"
    closed.mkdir(mode=0o700)
    assert "set AGENT_SERVER_TMP_DIR to a folder that every user can enter" in said("auto", closed)
    (opened / "file").touch()
    assert "cannot make a scratch folder" in said("auto", opened / "file")
    images = [closed / "a b.sif", closed / "image.sif"]
    for image in images:
        image.symlink_to(sif)
    closed_images = said("auto", opened, *images)
    assert closed_images.startswith(f"sandboxes cannot read {images[0]} and 1 more ")
    assert "chmod o+rX" in closed_images

    os.mknod(tmp_path / "closed-fuse", stat.S_IFCHR | 0o600, Path("/dev/fuse").stat().st_rdev)
    closed_device = _probe(f"mount --bind {tmp_path}/closed-fuse", Path("/dev/fuse"))
    assert closed_device.startswith("no sandbox can run on this machine: /dev/fuse is missing or closed to sandboxes")
    assert "open it with `chmod 666 /dev/fuse`" in closed_device

    for name in ("lower", "upper", "work", "overlay", "fuse"):
        (tmp_path / name).mkdir()
    layers = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    disk = tmp_path / "disk"
    subprocess.run(["truncate", "-s", "64M", disk], check=True)
    subprocess.run(["/sbin/mkfs.ext4", "-q", disk], check=True)
    for mount, folder in (
        (f"mount -t overlay -o {layers} overlay", tmp_path / "overlay"),
        (f"fuse2fs {disk}", tmp_path / "fuse"),
    ):
        said_there = _probe(mount, folder, TMPDIR=str(folder), AGENT_SERVER_CONFINEMENT="root")
        assert "set AGENT_SERVER_TMP_DIR to a folder on a local disk" in said_there


def _probe(mount: str, point: Path, **environment: str) -> str:
    """What the probe says with `mount` done on `point`, in a mount namespace of its own."""
    script = (
        f"{mount} {point} || exit 9; {sys.executable} -m swe_rollout.sandbox.probe; code=$?; umount {point}; exit $code"
    )
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done
    return done.stderr
