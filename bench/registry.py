"""A real docker-registry on loopback, with images pushed by skopeo from folders."""

import json
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from swe_rollout.errors import StartupError

_START_SECONDS = 30


class Registry:
    """Lives until `close`. Raises `StartupError` if the programs are not there or do not work."""

    def __init__(self) -> None:
        for program in ("docker-registry", "skopeo"):
            if shutil.which(program) is None:
                raise StartupError(f"no {program} on PATH: run `make setup`")
        self._folder = Path(tempfile.mkdtemp(prefix="swe-rollout-registry-"))
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        config = {
            "version": 0.1,
            "log": {"level": "error", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self._folder / "data")}},
            "http": {"addr": f"127.0.0.1:{self.port}"},
        }
        file = self._folder / "config.yml"
        file.write_text(json.dumps(config))
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(["docker-registry", "serve", file], stdout=log, stderr=log)
        self._wait()

    def push(self, image: str, trees: Sequence[Path], environment: Sequence[str] = ("PATH=/usr/bin:/bin",)) -> None:
        """`image` is `name:tag`; each tree is a layer."""
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            folder = Path(name)
            layers = [self._layer(tree) for tree in trees]
            config = {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Env": list(environment)},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.stem}" for layer in layers]},
            }
            (folder / "config.json").write_text(json.dumps(config))
            saved = [{"Config": "config.json", "RepoTags": None, "Layers": [layer.name for layer in layers]}]
            (folder / "manifest.json").write_text(json.dumps(saved))
            archive = folder / "image.tar"
            tar: list[str | Path] = ["tar", "-cf", archive, "-C", folder, "config.json", "manifest.json"]
            subprocess.run([*tar, "-C", self._folder, *(layer.name for layer in layers)], check=True)
            copy = ["skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"]
            target = f"docker://127.0.0.1:{self.port}/{image}"
            subprocess.run([*copy, f"docker-archive:{archive}", target], check=True)

    def close(self) -> None:
        """End it and remove its images."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder)

    def _layer(self, tree: Path) -> Path:
        raw = self._folder / "layer"
        tar = ["tar", "--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]
        subprocess.run([*tar, "-cf", raw, "-C", tree, "."], check=True)
        digest = sha256()
        with raw.open("rb") as content:
            while block := content.read(1 << 20):
                digest.update(block)
        return raw.rename(self._folder / f"{digest.hexdigest()}.tar")

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except ConnectionRefusedError:
                time.sleep(0.05)
        said = (self._folder / "log").read_text("utf-8", "replace").strip()
        self.close()
        raise StartupError(f"docker-registry does not start: {said[-300:]}")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
