"""The server's settings: environment variables and command line flags, checked once, never changed after."""

import argparse
import difflib
import inspect
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from swe_rollout import setting_types as types
from swe_rollout.errors import StartupError

_PREFIX = "AGENT_SERVER_"
_CLIENTS_VARIABLE = "AGENT_SERVER_URL"
_TOKEN = re.compile(r"[!-~]+")
_TOKEN_IN_WORDS = "one word of visible ASCII characters"
_UNSAFE_IN_MOUNTS = ":,\\\n"
"""Apptainer splits mount and overlay arguments at the first two; the kernel unescapes the others."""


class Settings(BaseSettings):
    """One value per setting: the flag if given, else the variable if set and not empty, else the default."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_by_alias=True,
        validate_by_name=True,
    )

    r2e_data_path: types.ExistingFolder = Field(validation_alias="R2E_DATA_PATH")
    """The folder that holds the parquet files of the training and evaluation rows."""
    r2e_sif_dir: types.ExistingFolder = Field(validation_alias="R2E_SIF_DIR")
    """The folder that holds one SIF per image that the rows name."""
    host: str = Field("127.0.0.1", min_length=1)
    """The address to listen on."""
    port: int = Field(8765, ge=0, le=65535)
    """The port to listen on; 0 takes a free one and the start line says which."""
    token: SecretStr | None = None
    """What every call but GET /healthz must carry as `Authorization: Bearer`; not needed if not set. Not a flag:
    arguments are public on the machine."""
    token_file: types.File | None = None
    """A file that holds the token, instead of AGENT_SERVER_TOKEN."""
    insecure: bool = False
    """Whether to serve other machines without a token."""
    work_dir: types.Folder = Field(default_factory=types.work_dir)
    """Where each session leaves its trajectory, patch and test log."""
    tmp_dir: types.Folder = Field(default_factory=types.tmp_dir)
    """Where the sandboxes' writable layers live while they run; a local disk is best."""
    config: types.Specs = ()
    """YAML files or key=value settings merged over agent_config.yaml, in order. The flag may be repeated; the
    variable is split as a shell would."""
    train_concurrency: int = Field(64, ge=1)
    """Training sessions that may have a sandbox at the same time."""
    eval_concurrency: int = Field(64, ge=1)
    """Evaluation sessions that may have a sandbox at the same time."""
    reward_concurrency: int = Field(default_factory=types.reward_concurrency, ge=1)
    """Submissions that may be judged at the same time."""
    train_group_size: int = Field(8, ge=1)
    """Training sessions that share one row; must be the trainer's samples per prompt."""
    eval_group_size: int = Field(1, ge=1)
    """Evaluation sessions that share one row."""
    shuffle: bool = True
    """Whether training rows are shuffled anew each epoch."""
    seed: int = 42
    """The seed of that shuffle."""
    max_sessions: int = Field(4000, ge=1)
    """Sessions that may be open at the same time, running or waiting; more are asked to come again."""
    http_threads: int = Field(1200, ge=8)
    """Threads that answer HTTP. One is taken by each client that waits for its session's end."""
    record_ttl_seconds: float = Field(3600.0, ge=300.0, allow_inf_nan=False)
    """How long the record of an ended session is kept. A client that lost the answer asks again for some
    minutes."""
    client_ttl_seconds: float = Field(120.0, allow_inf_nan=False)
    """How long a session's client may be silent. A session that nobody has asked for this long is cancelled."""
    confinement: Literal["auto", "unprivileged", "root"] = "auto"
    """Who sandboxes run as on this machine: auto and unprivileged never give them the host's root,
    root is faster."""
    sandbox_user: str = Field("swe-sandbox", min_length=1)
    """The user that sandboxes run as if the server is root."""
    run_id: str = Field(default_factory=types.run_id, max_length=64, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")
    """A name for this launch, of letters, digits, dots, dashes and underscores. /healthz tells it, so that a launcher
    knows its own server from an older one."""

    def secret(self) -> str | None:
        """The token that calls must carry, None if they need none. Raises `ValueError` for a file without one."""
        if self.token_file is None:
            return self.token.get_secret_value() if self.token else None
        variable = variable_of("token_file")
        try:
            secret = self.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "is not text"
            raise ValueError(f"{variable}={self.token_file}: {why}") from None
        if not _TOKEN.fullmatch(secret):
            raise ValueError(f"{variable}={self.token_file} does not hold {_TOKEN_IN_WORDS}")
        return secret

    @model_validator(mode="after")
    def _is_closed_to_strangers(self) -> "Settings":
        if self.token and self.token_file:
            raise ValueError("AGENT_SERVER_TOKEN and AGENT_SERVER_TOKEN_FILE are both set; keep one of them")
        if self.token and not _TOKEN.fullmatch(self.token.get_secret_value()):
            raise ValueError(f"AGENT_SERVER_TOKEN is not {_TOKEN_IN_WORDS}")
        if self.secret() is None and not self.insecure and not types.is_loopback(self.host):
            raise ValueError(
                f"AGENT_SERVER_HOST={self.host} serves other machines: set AGENT_SERVER_TOKEN or "
                "AGENT_SERVER_TOKEN_FILE, or pass --insecure if everybody there may use the server"
            )
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> "Settings":
        slots = self.train_concurrency + self.eval_concurrency
        if self.max_sessions < slots:
            raise ValueError(
                f"AGENT_SERVER_MAX_SESSIONS={self.max_sessions} is less than the {slots} sessions that "
                "AGENT_SERVER_TRAIN_CONCURRENCY and AGENT_SERVER_EVAL_CONCURRENCY allow; raise it"
            )
        if unsafe := set(_UNSAFE_IN_MOUNTS) & set(str(self.tmp_dir)):
            raise ValueError(
                f"AGENT_SERVER_TMP_DIR={str(self.tmp_dir)!r} is used as a mount and cannot contain "
                f"{' or '.join(map(repr, sorted(unsafe)))}; choose another folder"
            )
        return self


def variable_of(name: str) -> str:
    """The environment variable of the setting called `name`."""
    alias = Settings.model_fields[name].validation_alias
    return alias if isinstance(alias, str) else _PREFIX + name.upper()


def load_settings(argv: Sequence[str]) -> Settings:
    """Settings from the command line over the environment.

    Prints the help and raises `SystemExit` for `--help`. Raises `StartupError` with one line that names every
    flag or variable that is unknown, missing or wrong.
    """
    return settings_from(vars(_parser().parse_args(argv)))


def settings_from(given: dict[str, Any]) -> Settings:
    """Settings from the flags in `given`, by name, over the environment. Raises `StartupError` as `load_settings`."""
    try:
        return Settings(**given)
    except ValidationError as error:
        raise StartupError("; ".join(_explain(dict(e), given) for e in error.errors())) from None


def strangers(environment: Iterable[str]) -> list[str]:
    """A line on each variable that looks like a setting and is none: most often a typing error."""
    known = {variable_of(name) for name in Settings.model_fields} | {_CLIENTS_VARIABLE}
    lines = []
    for variable in sorted(set(environment) - known):
        if variable.startswith(_PREFIX):
            meant = difflib.get_close_matches(variable, known, n=1, cutoff=0.85)
            lines.append(f"{variable} is no setting and has no effect" + "".join(f"; is it {m}?" for m in meant))
    return lines


def _explain(error: dict[str, Any], given: dict[str, Any]) -> str:
    if not error["loc"]:
        return str(error["ctx"]["error"])
    name = next(n for n in Settings.model_fields if error["loc"][0] in (n, variable_of(n)))
    if error["type"] == "missing":
        meaning = _meaning(Settings.model_fields[name]).rstrip(".")
        return f"{variable_of(name)} (or {_flag(name)}) is not set: {meaning}"
    source = f"{_flag(name)} " if name in given else f"{variable_of(name)}="
    return f"{source}{str(error['input'])!r}: {error['msg'].removeprefix('Value error, ')}"


class Parser(argparse.ArgumentParser):
    """Refuses a wrong command line with a `StartupError`."""

    def error(self, message: str) -> NoReturn:
        raise StartupError(f"{message} (--help lists the settings)")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="agent_server.py",
        description="Runs coding-agent sessions for a trainer and answers over HTTP.",
        epilog="Two commands need no trainer; --help after either says more. `agent_server.py validate` finds out\n"
        "which rows can be trusted, `agent_server.py rescore` judges stored patches again.\n\n"
        "A flag beats its environment variable; an empty variable counts as not set. AGENT_SERVER_TOKEN, the "
        "token that calls must carry, has no flag: arguments are public on the machine.",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(parser)
    return parser


def add_flags(parser: argparse._ActionsContainer, shown: Collection[str] = Settings.model_fields) -> None:
    """A flag for each setting; those not in `shown` are taken too, but the help is silent about them."""
    for name, field in Settings.model_fields.items():
        if name == "token":
            continue
        text = f"{variable_of(name)}, {_default(field)}. {_meaning(field)}"
        # `--insecure` without a value means true.
        alone: dict[str, Any] = {"nargs": "?", "const": "true"} if field.annotation is bool else {}
        parser.add_argument(
            _flag(name),
            dest=name,
            action="append" if name == "config" else "store",
            default=argparse.SUPPRESS,
            metavar=_metavar(name, field),
            help=text.replace("%", "%%") if name in shown else argparse.SUPPRESS,
            **alone,
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _metavar(name: str, field: FieldInfo) -> str:
    if name == "confinement":
        return "auto|unprivileged|root"
    if name == "config":
        return "SPEC"
    if name == "token_file":
        return "FILE"
    names = {int: "N", float: "SECONDS", bool: "true|false", Path: "FOLDER"}
    return next((name for kind, name in names.items() if field.annotation is kind), "TEXT")


def _meaning(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        return f"default: {inspect.getdoc(field.default_factory)}"
    return f"default: {'none' if field.default in ((), None) else field.default}"
