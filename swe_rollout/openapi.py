"""The server's own description: an OpenAPI 3.1 document made of the routes and the types that they use."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

from flask import Flask
from pydantic import BaseModel, TypeAdapter
from werkzeug.routing import Rule

from swe_rollout.answers import Refusal

_View = TypeVar("_View", bound=Callable[..., Any])
_VERSION = "1"


@dataclass(frozen=True)
class Operation:
    """What one route takes and gives."""

    answers: Mapping[int, Any]
    """By status: the type of a JSON answer, `str` for plain text, None for no body."""
    refusals: Sequence[int] = ()
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    is_open: bool = False
    """Whether it needs no token."""


def describes(operation: Operation) -> Callable[[_View], _View]:
    """Attach `operation` to the function that serves it; the function's docstring is its summary."""

    def attach(view: _View) -> _View:
        view.operation = operation  # type: ignore[attr-defined]
        return view

    return attach


def document(app: Flask, *, title: str, parameters: Mapping[str, str], needs_token: bool) -> dict[str, Any]:
    """Describe all routes of `app`. `parameters` says what the parts of paths mean."""
    served: list[tuple[Rule, Any]] = [(rule, app.view_functions[rule.endpoint]) for rule in app.url_map.iter_rules()]
    operations: list[tuple[Rule, Any, Operation]] = [(rule, view, view.operation) for rule, view in served]
    schemas, refs = _schemas(operation for _, _, operation in operations)
    paths: dict[str, dict[str, Any]] = {}
    for rule, view, operation in operations:
        path = re.sub(r"<(\w+)>", r"{\1}", rule.rule)
        said: dict[str, Any] = {
            "operationId": rule.endpoint,
            "summary": " ".join((view.__doc__ or "").split()),
            "responses": _responses(operation, refs, needs_token),
            "parameters": [
                *(
                    {"name": name, "in": "path", "required": True, "description": parameters[name]}
                    | {"schema": {"type": "string"}}
                    for name in sorted(rule.arguments)
                ),
                *_query(operation.query),
            ],
        }
        if operation.body is not None:
            content = {"application/json": {"schema": refs[operation.body]}}
            said["requestBody"] = {"required": True, "content": content}
        if needs_token and operation.is_open:
            said["security"] = []
        for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
            paths.setdefault(path, {})[method.lower()] = said
    components: dict[str, Any] = {"schemas": schemas}
    if needs_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": _VERSION},
        "paths": paths,
        "components": components,
        **({"security": [{"token": []}]} if needs_token else {}),
    }


def _schemas(operations: Iterable[Operation]) -> tuple[dict[str, Any], dict[Any, dict[str, Any]]]:
    """The schemas of all types that occur, and what refers to each."""
    inputs: set[Any] = set()
    outputs: set[Any] = {Refusal}
    for operation in operations:
        inputs |= {operation.body} - {None}
        outputs |= {kind for kind in operation.answers.values() if kind not in (None, str)}
    wanted: list[Any] = [(kind, "validation", TypeAdapter(kind)) for kind in sorted(inputs, key=str)]
    wanted += [(kind, "serialization", TypeAdapter(kind)) for kind in sorted(outputs, key=str)]
    refs, schema = TypeAdapter.json_schemas(wanted, ref_template="#/components/schemas/{model}")
    return dict(sorted(schema["$defs"].items())), {kind: ref for (kind, _), ref in refs.items()}


def _responses(operation: Operation, refs: Mapping[Any, Any], needs_token: bool) -> dict[str, Any]:
    refusals = {*operation.refusals, *([401] if needs_token and not operation.is_open else [])}
    answers = dict.fromkeys(refusals, Refusal) | dict(operation.answers)
    return {
        str(status): {"description": HTTPStatus(status).phrase} | _content(kind, refs)
        for status, kind in sorted(answers.items())
    }


def _content(kind: Any, refs: Mapping[Any, Any]) -> dict[str, Any]:
    if kind is None:
        return {}
    if kind is str:
        return {"content": {"text/plain": {"schema": {"type": "string"}}}}
    return {"content": {"application/json": {"schema": refs[kind]}}}


def _query(model: type[BaseModel] | None) -> list[dict[str, Any]]:
    if model is None:
        return []
    schema = model.model_json_schema()
    return [
        {"name": name, "in": "query", "required": name in schema.get("required", ())}
        | {"description": said.pop("description", ""), "schema": said}
        for name, said in schema["properties"].items()
    ]
