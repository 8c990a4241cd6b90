"""The kinds of values that settings have, and the defaults that depend on the machine.

The docstring of a default is what the help says of it.
"""

import ipaddress
import os
import secrets
import shlex
import tempfile
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode

from swe_rollout.cache import cache_folder


def work_dir() -> Path:
    """$SWE_ROLLOUT_CACHE/work"""
    return cache_folder() / "work"


def tmp_dir() -> Path:
    """swe-rollout-<uid> in the system's folder for temporary files"""
    return Path(tempfile.gettempdir(), f"swe-rollout-{os.getuid()}").absolute()


def reward_concurrency() -> int:
    """one per 8 CPUs, at least 4"""
    return max(4, (os.cpu_count() or 1) // 8)


def run_id() -> str:
    """random"""
    return secrets.token_hex(8)


def absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def existing(path: Path) -> Path:
    if not path.is_dir():
        raise ValueError("no such folder")
    return path


Folder = Annotated[Path, AfterValidator(absolute)]
ExistingFolder = Annotated[Folder, AfterValidator(existing)]
File = Annotated[Path, AfterValidator(absolute)]
Specs = Annotated[
    tuple[str, ...],
    NoDecode,
    BeforeValidator(lambda specs: tuple(shlex.split(specs)) if isinstance(specs, str) else specs),
]
