"""From an image's name to where it is and what it is now: one HEAD, which Docker Hub does not count as a pull.

The login and the token dance are oras': its own requests sleep through failures and cannot be ended, so the request is
made here.
"""

import ipaddress
import os
import re
import textwrap
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import requests
from oras.auth import get_auth_backend
from oras.container import Container

from swe_rollout.prepare.faults import BuildFault, MissingImage, Throttled, Transient, denied
from swe_rollout.prepare.wish import retry_after

_DOCKER_HUB = "docker.io"
_API_HOST = {_DOCKER_HUB: "registry-1.docker.io"}
_LOGIN_NAME = {_DOCKER_HUB: "https://index.docker.io/v1/"}
"""What Docker's and Apptainer's configuration call it."""
_LOGINS = Path("~/.apptainer/docker-config.json")
_TIMEOUT = (10.0, 30.0)
_ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)


@dataclass(frozen=True)
class Reference:
    """An image in a registry."""

    host: str
    name: str
    """With its namespace, without tag."""
    tag: str
    insecure: bool
    """Plain HTTP."""

    def at(self, digest: str) -> str:
        """The name for `docker://`; by tag if there is no digest."""
        return f"{self.host}/{self.name}" + (f"@{digest}" if digest else f":{self.tag}")


def locate(image: str, mirror: str | None = None) -> Reference:
    """Where `image` is, by Docker's rules. A mirror stands for Docker Hub only. Raises ValueError for a bad name."""
    head, slash, rest = image.partition("/")
    host, path = (head, rest) if slash and re.search(r"[.:]|^localhost$", head) else (_DOCKER_HUB, image)
    name, colon, tag = path.rpartition(":")
    name, tag = (name, tag) if colon else (path, "latest")
    host_fits = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*(:\d+)?", host)
    if (
        not host_fits
        or not re.fullmatch(r"[a-z0-9]+(?:[._/-]+[a-z0-9]+)*", name)
        or not re.fullmatch(r"\w[\w.-]*", tag)
    ):
        raise ValueError(f"{image!r} is not the name of an image")
    if host != _DOCKER_HUB:
        return Reference(host, name, tag, insecure=False)
    name = name if "/" in name else f"library/{name}"
    if mirror is None:
        return Reference(host, name, tag, insecure=False)
    server, _, prefix = re.sub(r"^https?://", "", mirror).strip("/").partition("/")
    return Reference(server, f"{prefix}/{name}" if prefix else name, tag, mirror.startswith("http://"))


class Registry:
    """Asks registries; for many threads."""

    def __init__(self) -> None:
        self._local = threading.local()

    def digest(self, reference: Reference) -> str:
        """The digest the tag stands for now, "" if the registry does not say. Raises `BuildFault`."""
        answer = self._manifest("HEAD", reference)
        host = _host(reference)
        if answer.status_code == 404:
            raise MissingImage(f"{host} does not have {reference.name}:{reference.tag} (manifest unknown)")
        if answer.status_code in (401, 403):
            raise denied()
        if answer.status_code != 200:
            raise BuildFault(f"{host} answered {answer.status_code} {answer.reason} when asked for its manifest")
        if "html" in answer.headers.get("Content-Type", ""):
            raise BuildFault(f"{host} answered with a web page instead of a manifest: is a proxy or a portal between?")
        return answer.headers.get("Docker-Content-Digest", "")

    def wish(self, reference: Reference) -> float | None:
        """Seconds that the registry asks who pulls to wait, None if it does not: for one who was refused by 429, and
        was not told. A HEAD need not be refused with it.
        """
        try:
            self._manifest("GET", reference)
        except Throttled as fault:
            return fault.retry_after
        except BuildFault:
            pass
        return None

    def _manifest(self, method: str, reference: Reference) -> requests.Response:
        session = self._session(reference.host)
        scheme = "http" if reference.insecure else "https"
        url = f"{scheme}://{_host(reference)}/v2/{reference.name}/manifests/{reference.tag}"
        try:
            answer = session.request(method, url, headers={"Accept": _ACCEPT}, timeout=_TIMEOUT)
            if answer.status_code == 401:
                headers = {"Accept": _ACCEPT, **_login(session, reference, answer)}
                answer = session.request(method, url, headers=headers, timeout=_TIMEOUT)
        except (requests.RequestException, ValueError) as error:
            raise Transient(f"{_host(reference)} cannot be asked: {_words(error)}") from None
        return answer

    def _session(self, host: str) -> requests.Session:
        # A session is not for two threads.
        sessions: dict[str, requests.Session] = self._local.__dict__.setdefault("sessions", {})
        if host not in sessions:
            sessions[host] = session = requests.Session()
            # Like Apptainer, which never goes through a proxy to this machine.
            session.trust_env = not _is_loopback(host)
            session.hooks["response"].append(_refusals)
        return sessions[host]


def _host(reference: Reference) -> str:
    return _API_HOST.get(reference.host, reference.host)


def _refusals(answer: requests.Response, *_: object, **__: object) -> None:
    """For the registry's answers and for those of its token server."""
    where = answer.url.split("/")[2]
    if answer.status_code == 429:
        wait = retry_after(answer.headers.get("Retry-After", ""))
        raise Throttled(f"{where} throttles (429 Too Many Requests)", wait)
    if answer.status_code >= 500 or answer.status_code == 408:
        raise Transient(f"{where} answered {answer.status_code} {answer.reason}")


def _login(session: requests.Session, reference: Reference, answer: requests.Response) -> Mapping[str, str]:
    """The header that a 401 asks for. Raises `AccessDenied` if the logins at hand do not get one."""
    kind = "basic" if answer.headers.get("Www-Authenticate", "").lower().startswith("basic") else "token"
    # A new one each time: tokens are for one repository, and oras' object keeps its own.
    auth = get_auth_backend(kind, session, reference.insecure)
    user, password = os.environ.get("APPTAINER_DOCKER_USERNAME"), os.environ.get("APPTAINER_DOCKER_PASSWORD")
    if user and password:
        auth.set_basic_auth(user, password)
    else:
        logins = _LOGINS.expanduser()
        registry = _LOGIN_NAME.get(reference.host, reference.host)
        auth.load_configs(Container(reference.name, registry), configs=[str(logins)] if logins.is_file() else None)
    try:
        headers, changed = auth.authenticate_request(answer, {})
    except AttributeError:
        # What oras' basic login does without a login.
        raise denied() from None
    if not changed:
        raise denied()
    return {"Authorization": headers["Authorization"]}


def _is_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] or host
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return name == "localhost"


def _words(error: Exception) -> str:
    """The cause at the end of what requests and urllib3 wrap around it."""
    words = re.sub(r"\s+", " ", str(error)).rpartition("(Caused by ")[2]
    return textwrap.shorten(words, 200) or type(error).__name__
