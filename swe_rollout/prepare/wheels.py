"""The wheels of the agent server's venv, so that a node without a network can make one of its own."""

import hashlib
import platform
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal

from swe_rollout.errors import StartupError
from swe_rollout.prepare import children, records
from swe_rollout.prepare.faults import Transient, Unclear
from swe_rollout.prepare.options import Options
from swe_rollout.prepare.retry import persistently
from swe_rollout.prepare.stopping import Stopping

_DAY = 24 * 3600.0
_NO_USE = re.compile(r"THESE PACKAGES DO NOT MATCH THE HASHES|No space left|Disk quota|Permission denied|Invalid req")


def obtain(options: Options, console: Console, stopping: Stopping) -> None:
    """Wheels of all that the requirements name, for this Python on this machine. For one process at a time.

    Raises `StartupError`, one line, if they cannot be had; `Stopped` after a signal.
    """
    folder, record = options.data_dir / "wheels", options.state_dir / "wheels.json"
    try:
        requirements = options.requirements.read_bytes()
    except OSError as error:
        raise StartupError(f"{options.requirements} cannot be read: {error.strerror}") from error
    wanted = {
        "requirements": hashlib.sha256(requirements).hexdigest(),
        "python": f"{platform.python_implementation()} {sys.version_info[0]}.{sys.version_info[1]}",
        "machine": f"{sys.platform} {platform.machine()}",
    }
    known = records.read(record)
    if known.items() >= wanted.items() and records.has_all(folder, known.get("files", {})):
        console.print(f"   {_told(known['files'])}: there")
        return
    folder.mkdir(parents=True, exist_ok=True)
    log = options.state_dir / "logs" / "wheels.log"
    log.parent.mkdir(exist_ok=True)
    argv = [sys.executable, "-m", "pip", "download", "--only-binary", ":all:", "--dest", str(folder)]
    argv += ["--progress-bar", "off", "--no-input", "--disable-pip-version-check", "-r", str(options.requirements)]
    if b"--hash=" in requirements:
        # Whoever has hashed everything has named everything.
        argv += ["--require-hashes", "--no-deps"]

    def once() -> None:
        stopping.check()
        log.unlink(missing_ok=True)
        with console.status("fetching"):
            code = children.run(argv, log, stopping.event, _DAY)
        if code:
            raise _fault(code, log)

    def pausing(fault: Exception, seconds: float) -> None:
        console.print(f"   {fault}; trying again in {seconds:.0f} s")

    console.print(f"   fetching what {options.requirements} names, for {wanted['python']}")
    try:
        persistently(once, options.build, stopping.event, pausing)
    except Transient as error:
        raise StartupError(f"{error}; run the same command to go on") from error
    files = {file.name: file.stat().st_size for file in sorted(folder.glob("*.whl"))}
    records.write(record, {**wanted, "files": files})
    console.print(f"   {_told(files)}")


def _told(files: dict[str, int]) -> str:
    return f"wheels: {len(files)} ({decimal(sum(files.values()))})"


def _fault(code: int, log: Path) -> Exception:
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.startswith("ERROR")]
    words = f"pip ended with {code}: {' / '.join(lines[:3])[:500] or 'no ERROR line'} (all it said: {log})"
    # pip has tried the network several times by then, and says the same of a package that there is not.
    return StartupError(words) if _NO_USE.search(words) else Unclear(words)
