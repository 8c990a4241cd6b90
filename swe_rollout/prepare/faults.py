"""Why something was not fetched or built; the kind says whether to try again."""

import re


class BuildFault(Exception):
    """One line, fit for a person. Not tried again unless the class says so."""


class MissingImage(BuildFault):
    """The registry does not have it."""


class AccessDenied(BuildFault):
    """The registry wants a login, or does not have it and will not say so."""


class NoSpace(BuildFault):
    """A disk ran full."""


class Transient(BuildFault):
    """Tried again: the network or a server failed."""


class Unclear(Transient):
    """Tried once more, and no more: words that do not say whether that is of use."""


class Unproven(Transient):
    """Tried again: whether a SIF is good was not clear in time."""


class Throttled(BuildFault):
    """Tried again, for long: 429. `retry_after`: seconds the server asked for, None if it did not."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Stopped(Exception):
    """The run was asked to end."""


_SEVERAL = re.IGNORECASE
_NO_SPACE = re.compile(r"no space left on device|disk quota exceeded", _SEVERAL)
_THROTTLED = re.compile(r"too ?many ?requests|\b429\b|pull rate limit", _SEVERAL)
_MISSING = re.compile(r"manifest[ _]unknown|name[ _]unknown|\b404\b", _SEVERAL)
_WRONG_KIND = re.compile(
    r"no (image found|child with platform|matching manifest)|unsupported (manifest )?media", _SEVERAL
)
_DENIED = re.compile(r"unauthorized|authentication required|access .*denied|^denied|\b403\b", _SEVERAL | re.MULTILINE)
_TRANSIENT = re.compile(
    r"\b5\d\d\b|\bEOF\b|connection (reset|refused)|broken pipe|time(d )?out|no such host|temporary failure|"
    r"network is unreachable|no route to host|server misbehaving|invalid checksum|digest mismatch|stream error",
    _SEVERAL,
)


def from_words(said: str, reference: str) -> BuildFault:
    """What `apptainer build` of `reference` failed for, by what it said."""
    # Names and tags of images have numbers in them.
    words = said.replace(reference, "").replace(reference.partition("@")[0], "")
    last = _last_words(said)
    if _NO_SPACE.search(words):
        return NoSpace(f"no space left on device while it was built: {last}")
    if _THROTTLED.search(words):
        return Throttled(f"the registry throttles: {last}")
    if _MISSING.search(words):
        return MissingImage(f"the registry does not have it: {last}")
    if _WRONG_KIND.search(words):
        return BuildFault(f"not an image for this machine: {last}")
    if _DENIED.search(words):
        return AccessDenied(f"{_LOGIN}: {last}")
    return (Transient if _TRANSIENT.search(words) else Unclear)(f"apptainer build failed: {last}")


_LOGIN = "the registry refuses access (no such image, or log in with `docker login`)"


def denied() -> AccessDenied:
    """For an answer 401 or 403."""
    return AccessDenied(_LOGIN)


def _last_words(said: str) -> str:
    lines = [re.sub(r"\s+", " ", line).strip() for line in said.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("FATAL", "ERROR"))]
    return re.sub(r"^(FATAL|ERROR):\s*", "", (fatal or lines or ["it said nothing"])[-1])[-300:]
