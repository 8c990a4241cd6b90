"""A hub on loopback: the part of its HTTP interface that the real `hf` and `huggingface_hub` use, with faults."""

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from faults import Answer, Cut, Fault, Faulty, Hold

HTML = Answer(200, {"Content-Type": "text/html"}, "<html>Please log in to the network</html>")
BROKEN = Answer(500, body="the hub is broken")
THROTTLED = Answer(429, {"Retry-After": "1"}, "slow down")


@dataclass(frozen=True)
class _Commit:
    sha: str
    files: Mapping[str, bytes]
    is_large: bool
    """Kept in large file storage, as parquet is: hashes are known, and downloads come from another address."""


class Hub(Faulty):
    """Serves what is `put`; `HF_ENDPOINT=url` makes clients ask it."""

    def __init__(self) -> None:
        super().__init__()
        self._commits: dict[tuple[str, str], _Commit] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        # Of another name: clients leave their tokens out there.
        self._downloads = f"http://localhost:{self._server.server_port}"

    def put(self, dataset: str, revision: str, files: Mapping[str, bytes], *, is_large: bool = True) -> str:
        """A commit that `revision`, itself a commit or a branch, stands for from now on; its hash."""
        sha = revision
        if not re.fullmatch("[0-9a-f]{40}", revision):
            sha = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        with self._lock:
            for name in (revision, sha):
                self._commits[dataset, name] = _Commit(sha, dict(files), is_large)
        return sha

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        if found := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path):
            return self._listing(found[1], found[2], unquote(found[3]))
        if found := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._file(found[1], unquote(found[2]), found[3])
        if found := re.fullmatch(r"/cdn/([0-9a-f]{64})", path):
            contents = (data for commit in self._commits.values() for data in commit.files.values())
            return 200, {}, next(data for data in contents if hashlib.sha256(data).hexdigest() == found[1])
        return 404, {}, b""

    def _commit(self, dataset: str, revision: str) -> _Commit | tuple[int, dict[str, str], bytes]:
        with self._lock:
            if commit := self._commits.get((dataset, revision)):
                return commit
            known = any(name == dataset for name, _ in self._commits)
        # The real one says 401 to strangers, so as not to tell what is private.
        return (
            (404, {"X-Error-Code": "RevisionNotFound"}, b"") if known else (401, {"X-Error-Code": "RepoNotFound"}, b"")
        )

    def _listing(self, dataset: str, what: str, revision: str) -> tuple[int, dict[str, str], bytes]:
        commit = self._commit(dataset, revision)
        if isinstance(commit, tuple):
            return commit
        files = []
        for name, data in sorted(commit.files.items()):
            large = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            blob = hashlib.sha1(data).hexdigest()
            if what == "revision":
                file = {"rfilename": name, "size": len(data), "blobId": blob}
                files.append(file | ({"lfs": large} if commit.is_large else {}))
            else:
                file = {"type": "file", "path": name, "size": len(data), "oid": blob}
                files.append(file | ({"lfs": {**large, "oid": large["sha256"]}} if commit.is_large else {}))
        body: Any = files if what == "tree" else {"id": dataset, "sha": commit.sha, "siblings": files, "tags": []}
        return 200, {"Content-Type": "application/json"}, json.dumps(body).encode()

    def _file(self, dataset: str, revision: str, name: str) -> tuple[int, dict[str, str], bytes]:
        commit = self._commit(dataset, revision)
        if isinstance(commit, tuple):
            return commit
        if name not in commit.files:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        data, headers = commit.files[name], {"X-Repo-Commit": commit.sha}
        if not commit.is_large:
            return 200, headers | {"ETag": f'"{hashlib.sha1(data).hexdigest()}"'}, data
        digest = hashlib.sha256(data).hexdigest()
        headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data))}
        return 302, headers | {"Location": f"{self._downloads}/cdn/{digest}"}, b""

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = urlsplit(self.path).path
                headers = {name.lower(): value for name, value in self.headers.items()}
                with hub._lock:
                    hub.requests.append((self.command, path, headers))
                fault = hub._fault(self.command, path)
                if isinstance(fault, Answer):
                    self._send(fault.status, dict(fault.headers), fault.body.encode())
                    return
                status, answered, body = hub._answer(self.command, path)
                if status == 200 and (wanted := re.fullmatch(r"bytes=(\d+)-", headers.get("range", ""))):
                    start = int(wanted[1])
                    answered["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
                    status, body = 206, body[start:]
                self._send(status, answered, body, fault)

            do_HEAD = do_GET  # noqa: N815

            def _send(self, status: int, headers: Mapping[str, str], body: bytes, fault: Fault | None = None) -> None:
                self.send_response(status)
                for name, value in {"Accept-Ranges": "bytes", **headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                half = len(body) // 2
                try:
                    self.end_headers()
                    if self.command != "HEAD":
                        self.wfile.write(body[:half])
                        if isinstance(fault, Hold):
                            fault.reached.set()
                            fault.release.wait()
                        if isinstance(fault, Cut):
                            self.close_connection = True
                        else:
                            self.wfile.write(body[half:])
                except OSError:
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        return Handler
