"""From a task's docker image name to a SIF that is whole."""

import os
import struct
from pathlib import Path

from swe_rollout.errors import ImageError, StartupError

BUILD = "`bash setup_r2e_data_and_sifs.sh` builds what is missing or damaged"

_HEADER = struct.Struct("<32s10s3s3s16s8q")
_MAGIC = b"SIF_MAGIC\0"


def sif_name(docker_image: str) -> str:
    """The SIF's file name: the image name with `/` and `:` replaced by `__`, as the setup script writes it."""
    return docker_image.replace("/", "__").replace(":", "__") + ".sif"


def official_image(instance_id: str) -> str:
    """The image that the SWE-bench harness has for an instance: no `__` and no capitals are allowed in its name."""
    return "swebench/" + f"sweb.eval.x86_64.{instance_id}:latest".lower().replace("__", "_1776_")


def check_sif(path: Path) -> None:
    """Raise `ImageError`, naming the file, unless it is a SIF as long as its header says.

    Reads 128 bytes: an empty file, an error page saved as an image and a copy that was cut short are found without
    starting anything. The layout is the SIF global header, version 01.
    """
    try:
        with path.open("rb") as file:
            header, size = file.read(_HEADER.size), path.stat().st_size
    except OSError as error:
        raise ImageError(f"image {path} cannot be read: {error.strerror}; build it again") from error
    if len(header) < _HEADER.size or not header[32:].startswith(_MAGIC):
        raise ImageError(f"image {path} is not a SIF file ({size} bytes); build it again")
    *_, data_offset, data_length = _HEADER.unpack(header)
    if size < data_offset + data_length:
        raise ImageError(f"image {path} is cut short: {size} bytes of {data_offset + data_length}; build it again")


class SifFolder:
    """The SIFs a folder has; its names are read once, as it may be remote and hold thousands."""

    def __init__(self, folder: Path) -> None:
        """Raises `StartupError` if the folder cannot be listed."""
        self._folder = folder
        try:
            self._names = frozenset(os.listdir(folder))
        except OSError as error:
            raise StartupError(
                f"SIF folder {folder} cannot be read: {error.strerror}; set R2E_SIF_DIR, or {BUILD}"
            ) from None

    def find(self, docker_image: str) -> Path | None:
        """The image's SIF; None if there is none. Raises `ImageError` as `check_sif` does."""
        name = sif_name(docker_image)
        if name not in self._names:
            return None
        check_sif(self._folder / name)
        return self._folder / name
