"""What `--ids FILE` names, for setup and validation alike."""

from pathlib import Path

from swe_rollout.errors import StartupError


def read_ids(file: Path) -> dict[str, None]:
    """The ids that `file` names, one a line, each once and in order; lines that are empty or begin with # do not count.

    Raises `StartupError` if it names none or cannot be read.
    """
    try:
        # Some editors put a mark before the first line.
        lines = [line.strip() for line in file.read_text("utf-8-sig").splitlines()]
    except OSError as error:
        raise StartupError(f"--ids {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StartupError(f"--ids {file} cannot be read: it is not text in UTF-8") from None
    ids = dict.fromkeys(line for line in lines if line and not line.startswith("#"))
    if not ids:
        raise StartupError(f"--ids {file} names no id")
    return ids
