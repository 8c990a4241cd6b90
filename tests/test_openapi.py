"""The document that the server gives of itself holds for what it answers."""

from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from scripted import Gate, Server, request_body

from swe_rollout.outcome import Outcome
from swe_rollout.session import SessionRequest

Serve = Callable[..., Server]


def check(document: dict[str, Any], method: str, path: str, answer: Any) -> None:
    """`answer` is one that the document promises for this operation."""
    promised = document["paths"][path][method.lower()]["responses"][str(answer.status_code)]
    if "content" not in promised:
        assert answer.content == b""
        return
    ((kind, content),) = promised["content"].items()
    assert answer.headers["content-type"].split(";")[0] == kind
    if kind == "application/json":
        schema = {**content["schema"], "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(answer.json())


@pytest.mark.parametrize("token", [None, "s3cret"])
def test_every_route_answers_as_the_document_says(serve: Serve, token: str | None) -> None:
    gate = Gate(Outcome.completed("Submitted", 1.0, submission="diff"))
    server = serve(gate, token=token, train_concurrency=1, eval_concurrency=1, max_sessions=2)
    if token:
        server.http.headers["Authorization"] = f"Bearer {token}"
    document = server.http.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    assert {f"{method} {path}" for path, methods in document["paths"].items() for method in methods} == {
        *("post /sessions", "get /sessions", "get /sessions/{key}", "post /sessions/{key}/cancel"),
        *("get /tasks", "get /healthz", "get /readyz", "get /metrics", "get /openapi.json"),
    }
    body = request_body(request_id="req-1")
    calls: list[tuple[str, str, str, dict[str, Any], int]] = [
        ("POST", "/sessions", "/sessions", {"json": body}, 201),
        ("POST", "/sessions", "/sessions", {"json": body}, 200),
        ("POST", "/sessions", "/sessions", {"json": body | {"group_id": "other"}}, 409),
        ("POST", "/sessions", "/sessions", {"json": request_body()}, 201),
        ("POST", "/sessions", "/sessions", {"json": request_body()}, 503),
        ("POST", "/sessions", "/sessions", {"content": b"{"}, 400),
        ("POST", "/sessions", "/sessions", {"content": b" " * (1 << 20) + b"{"}, 413),
        ("GET", "/sessions/{key}", "/sessions/req-1", {}, 200),
        ("GET", "/sessions/{key}", "/sessions/req-1?wait=x", {}, 400),
        ("GET", "/sessions/{key}", "/sessions/none", {}, 404),
        ("POST", "/sessions/{key}/cancel", "/sessions/none/cancel", {}, 404),
        ("GET", "/sessions", "/sessions", {}, 200),
        ("GET", "/tasks", "/tasks?trouble=x", {}, 400),
        *(("GET", path, path, {}, 200) for path in ("/tasks", "/healthz", "/readyz", "/metrics", "/openapi.json")),
    ]
    for method, path, url, options, status in calls:
        answer = server.http.request(method, url, **options)
        assert answer.status_code == status, answer.text
        check(document, method, path, answer)
    gate.open()
    check(document, "GET", "/sessions/{key}", server.http.get("/sessions/req-1?wait=60"))
    check(document, "POST", "/sessions/{key}/cancel", server.http.post("/sessions/req-1/cancel"))
    server.sessions.close("the server is stopping", seconds=60)
    for method, path in (("GET", "/readyz"), ("POST", "/sessions")):
        answer = server.http.request(method, path, json=request_body())
        assert answer.status_code == 503
        check(document, method, path, answer)
    if token:
        del server.http.headers["Authorization"]
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                answer = server.http.request(method.upper(), path)
                assert answer.status_code == (200 if operation.get("security") == [] else 401)
                check(document, method, path, answer)


def test_the_rules_of_a_request_are_those_that_are_checked(serve: Serve) -> None:
    document = serve(Gate()).http.get("/openapi.json").json()
    schema = document["components"]["schemas"]["SessionRequest"]
    assert sorted(schema["properties"]) == sorted(SessionRequest.model_fields)
    assert schema["required"] == ["session_id", "group_id", "mode", "base_url", "api_key"]
    assert schema["properties"]["mode"]["enum"] == ["train", "eval"]
    assert schema["properties"]["group_id"]["description"] == "Sessions of one group get the same task."
    (wait,) = [
        parameter
        for parameter in document["paths"]["/sessions/{key}"]["get"]["parameters"]
        if parameter["in"] == "query"
    ]
    assert (wait["name"], wait["required"]) == ("wait", False)
    assert (wait["schema"]["minimum"], wait["schema"]["maximum"]) == (0.0, 300.0)
