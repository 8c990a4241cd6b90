"""The server against calls made from its own description, right ones and wrong ones."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks
from scripted import Server

from swe_rollout.outcome import Outcome

EXAMPLES = 40
"""Calls per operation and kind."""
SECONDS = 10
"""In which every call must be answered; no session is open, so none has anything to wait for."""
CHECKS = (
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
)


@pytest.mark.parametrize("token", [None, "a-token-for-the-test"])
def test_every_answer_is_one_that_the_description_has(serve: Callable[..., Server], token: str | None) -> None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    server = serve(lambda _: Outcome.completed("Submitted", 1.0, submission="diff"), token=token)
    server.http.headers.update(headers)
    known = server.open(request_id="req-known")
    server.ended(known)
    document = server.http.get("/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=server.url)
    answered: dict[str, set[int]] = {}
    for found in schema.get_all_operations():
        operation = found.ok()
        seen = answered[operation.label] = set()
        _fuzz(operation, GenerationMode.POSITIVE, [known, "req-known"], headers, seen)
        if token:
            _fuzz(operation, GenerationMode.POSITIVE, [known], {}, seen)
        # Where any text will do, no call is wrong.
        with contextlib.suppress(Unsatisfiable):
            _fuzz(operation, GenerationMode.NEGATIVE, [known], headers, seen)
    print(answered)
    for label, seen in answered.items():
        assert (401 in seen) == (token is not None and label != "GET /healthz"), label
    assert answered["POST /sessions"] >= {201, 400}
    assert answered["GET /sessions/{key}"] >= {200, 400, 404}
    assert answered["POST /sessions/{key}/cancel"] >= {204, 404}
    assert server.http.get("/readyz").json()["status"] == "ready"


def _fuzz(
    operation: Any, mode: GenerationMode, keys: Sequence[str], headers: Mapping[str, str], seen: set[int]
) -> None:
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), key=st.sampled_from([None, *keys]))
    def call(case: Any, key: str | None) -> None:
        if key is not None and "key" in case.path_parameters:
            case.path_parameters["key"] = key
        response = case.call(headers=headers, timeout=SECONDS)
        case.validate_response(response, checks=CHECKS)
        seen.add(response.status_code)

    call()
