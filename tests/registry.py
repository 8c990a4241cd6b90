"""A real registry on loopback with a proxy in front that fails as it is told."""

import http.client
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from faults import Answer, Cut, Faulty, Hold

from bench.registry import Registry

HOP_HEADERS = {"connection", "transfer-encoding", "keep-alive"}


THROTTLED = Answer(
    429,
    {"Content-Type": "application/json", "Retry-After": "1"},
    '{"errors":[{"code":"TOOMANYREQUESTS","message":"You have reached your pull rate limit."}]}',
)
BROKEN = Answer(500, body="the registry is broken")
PORTAL = Answer(200, {"Content-Type": "text/html"}, "<html>Please log in to the network</html>")


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Clients that are killed break their connections."""


class LocalRegistry(Registry, Faulty):
    """Images are pushed past the proxy; `url` is the proxy."""

    def __init__(self) -> None:
        Registry.__init__(self)
        Faulty.__init__(self)
        self._proxy = _Proxy(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._proxy.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._proxy.server_port}"

    def close(self) -> None:
        """End all, remove all."""
        self._proxy.shutdown()
        self._proxy.server_close()
        super().close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                with registry._lock:
                    registry.requests.append((self.command, self.path, dict(self.headers)))
                fault = registry._fault(self.command, self.path)
                if isinstance(fault, Answer):
                    self._send(fault.status, fault.headers, fault.body.encode())
                    return
                if isinstance(fault, Hold):
                    fault.reached.set()
                    fault.release.wait()
                upstream = http.client.HTTPConnection("127.0.0.1", registry.port)
                upstream.request(self.command, self.path, headers=dict(self.headers))
                answer = upstream.getresponse()
                headers = {name: value for name, value in answer.getheaders() if name.lower() not in HOP_HEADERS}
                self._send(answer.status, headers, answer.read(), cut=isinstance(fault, Cut))
                upstream.close()

            def do_HEAD(self) -> None:
                self.do_GET()

            def _send(self, status: int, headers: Mapping[str, str], body: bytes, cut: bool = False) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if "content-length" not in {name.lower() for name in headers}:
                    self.send_header("Content-Length", str(len(body)))
                try:
                    self.end_headers()
                    if self.command != "HEAD":
                        self.wfile.write(body[: len(body) // 2] if cut else body)
                except OSError:
                    cut = True
                self.close_connection = self.close_connection or cut

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def tiny_tree(folder: Path, programs: Sequence[str] = ("bash", "sh", "true", "cat", "ls")) -> Path:
    """A root with a few programs and their libraries, in the new `folder`."""
    for name in ("proc", "sys", "dev", "tmp", "etc", "root", "usr", "var"):
        (folder / name).mkdir(parents=True)
    paths = [Path(shutil.which(name) or name) for name in programs]
    libraries = subprocess.run(["ldd", *paths], capture_output=True, text=True, check=True).stdout.split()
    for path in {*paths, *(Path(word) for word in libraries if word.startswith("/") and not word.endswith(":"))}:
        # A root that has real folders where this machine has links.
        for target in {folder / str(path).lstrip("/"), folder / "bin" / path.name if path in paths else None} - {None}:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    return folder


def small_images(registry: LocalRegistry, base: Path, folder: Path, images: Sequence[str]) -> None:
    """Push images that share `base` and differ in one file each."""
    for number, image in enumerate(images):
        own = folder / f"own-{number}"
        (own / "etc").mkdir(parents=True)
        (own / "etc/image").write_text(f"{image}\n" * 500)
        registry.push(image, [base, own])
