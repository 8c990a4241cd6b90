"""agent_config.yaml: what a session does, as opposed to how the server is run (`settings.py`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from jinja2 import Environment, TemplateSyntaxError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from swe_rollout.errors import StartupError
from swe_rollout.sandbox.sandbox import Network

DEFAULT_FILE = Path(__file__).parents[1] / "agent_config.yaml"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


def _template(text: str) -> str:
    try:
        Environment().parse(text)
    except TemplateSyntaxError as error:
        raise ValueError(f"line {error.lineno} is no Jinja template: {error.message}") from None
    return text


_Template = Annotated[str, AfterValidator(_template)]


class DataConfig(_Section):
    train: str
    """Pattern of the parquet files for training, below R2E_DATA_PATH; empty: no train sessions."""
    eval: str
    """Pattern of the parquet files for evaluation, below R2E_DATA_PATH; empty: no eval sessions."""


class AgentSection(_Section):
    system_template: _Template
    instance_template: _Template
    step_limit: int = Field(ge=1)
    """Model calls per session."""
    wall_time_limit_seconds: int = Field(ge=1)
    """Seconds of commands per session. Waits for the model and for a slot are not counted: Relax bounds those."""
    max_consecutive_format_errors: int = Field(ge=1)


class ModelSection(_Section):
    model_name: str
    model_kwargs: dict[str, Any] = {}
    """Added to every chat request."""
    connect_timeout: float = Field(gt=0)
    """Seconds to connect and to write a request. Reading an answer has no limit: Relax holds requests for hours."""
    observation_template: _Template
    format_error_template: _Template


class NetworkSection(_Section):
    """Per mode, the same for the agent's sandbox and the judge's: `none` or `host`."""

    train: Network
    eval: Network


def _absolute(path: str) -> str:
    if not path.startswith("/") or ".." in path.split("/"):
        raise ValueError("must be an absolute path of the sandbox")
    return path


class EnvironmentSection(_Section):
    cwd: Annotated[str, AfterValidator(_absolute)]
    """The task's tree in the sandbox, where every command begins."""
    timeout: float = Field(gt=0)
    """Seconds per command of the agent."""
    process_limit: int = Field(ge=16)
    """Processes and threads of one sandbox."""
    memory_limit_mb: int | None = Field(ge=64)
    """Memory of one sandbox; null: no limit."""
    disk_limit_mb: int | None = Field(ge=64)
    """What one sandbox may write; null: no limit."""
    network: NetworkSection
    env: dict[str, str]


class SetupSection(_Section):
    timeout: float = Field(gt=0)
    script: str
    """Bash, run once in each fresh sandbox, the agent's and the judge's."""


class ScoringSection(_Section):
    timeout: float = Field(gt=0)
    """Seconds for the hidden tests of a task in R2E form."""
    swebench_timeout: float = Field(gt=0)
    """Seconds for those of a task in SWE-bench form."""
    command: str = Field(pattern=r"\S")
    """Runs the hidden tests of a task in R2E form, in its tree."""


class RolloutConfig(_Section):
    data: DataConfig
    agent: AgentSection
    model: ModelSection
    environment: EnvironmentSection
    setup: SetupSection
    scoring: ScoringSection


_FROM_MINI_SWE_AGENT = {
    "agent": ("system_template", "instance_template"),
    "model": ("observation_template", "format_error_template"),
}


def load_config(specs: Sequence[str] = ()) -> RolloutConfig:
    """agent_config.yaml, with `specs` (files, or KEY=VALUE with dots in the key) merged over it in their order.

    Raises `StartupError` naming the file or key that is wrong.
    """
    from minisweagent.config import get_config_from_spec
    from minisweagent.utils.serialize import recursive_merge

    stock = get_config_from_spec("swebench.yaml")
    merged = {section: {key: stock[section][key] for key in keys} for section, keys in _FROM_MINI_SWE_AGENT.items()}
    for spec in (str(DEFAULT_FILE), *specs):
        try:
            part = get_config_from_spec(spec)
        except FileNotFoundError:
            raise StartupError(f"configuration {spec!r} is neither a file nor KEY=VALUE") from None
        except yaml.YAMLError as error:
            raise StartupError(f"configuration {spec} is not YAML: {' '.join(str(error).split())}") from None
        if not isinstance(part, dict):
            raise StartupError(f"configuration {spec} holds no sections")
        merged = recursive_merge(merged, part)
    try:
        return RolloutConfig.model_validate(merged)
    except ValidationError as error:
        raise StartupError("; ".join(_in_words(item) for item in error.errors())) from None


def _in_words(item: Any) -> str:
    key = ".".join(map(str, item["loc"]))
    if item["type"] == "extra_forbidden":
        return f"configuration: unknown key {key}"
    if item["type"] == "missing":
        return f"configuration: {key} is missing"
    return f"configuration: {key}={item['input']!r}: {item['msg'].lower()}"
