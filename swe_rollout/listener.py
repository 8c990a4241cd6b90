"""The socket, the threads that answer HTTP, and how they stop."""

import contextlib
import resource
import socket
import threading
from typing import TYPE_CHECKING

import waitress
from waitress import wasyncore

from swe_rollout.errors import StartupError

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

_MAX_BODY_BYTES = 16 << 20
"""Above this waitress hangs up with its own words; below it the application refuses in JSON."""
_FILES = 65_536


class Listener:
    """Answers HTTP on one address."""

    def __init__(self, app: "WSGIApplication", sock: socket.socket, *, threads: int) -> None:
        """Listens from now on; `run` answers. Raises `StartupError` if another server took the address."""
        host, port = sock.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if sock.family == socket.AF_INET6 else f"http://{host}:{port}"
        try:
            self._server = waitress.create_server(
                app,
                sockets=[sock],
                threads=threads,
                # A client that waits holds a thread too; a burst of others holds connections only.
                connection_limit=4 * threads + 1000,
                asyncore_use_poll=True,
                ident=None,
                max_request_body_size=_MAX_BODY_BYTES,
                log_socket_errors=False,
            )
        except OSError as error:
            raise _refused(host, port, error) from None
        self._stopped = threading.Event()

    def run(self) -> None:
        """Answer until `stop`."""
        connections = self._server._map
        try:
            while not self._stopped.is_set():
                wasyncore.loop(timeout=1.0, use_poll=True, map=connections, count=1)
        finally:
            wasyncore.close_all(connections)

    def stop(self, *, seconds: float) -> None:
        """Let calls being answered finish for up to `seconds`, then end `run`; from another thread."""
        self._server.task_dispatcher.shutdown(timeout=seconds)
        self._stopped.set()
        with contextlib.suppress(OSError):
            self._server.pull_trigger()


def bind(host: str, port: int) -> socket.socket:
    """A socket with this address, not listening yet. Raises `StartupError` if it cannot be had."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise _refused(host, port, error) from None
    return sock


def raise_file_limit() -> None:
    """Let this process have as many connections open as the machine allows; the usual soft limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _refused(host: str, port: int, error: OSError) -> StartupError:
    return StartupError(
        f"cannot listen on {host} port {port}: {error.strerror or error}; "
        "choose another with AGENT_SERVER_HOST and AGENT_SERVER_PORT, or stop the server that has it"
    )
