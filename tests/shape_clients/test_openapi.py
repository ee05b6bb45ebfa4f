"""Requests of every kind, made from the OpenAPI document: each answer is one that it tells of."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
import requests
import schemathesis
from hypothesis import given, settings
from hypothesis import strategies as st
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.kafka_server import ServerProcess
from tests.support.rounds import IS_LONG
from tests.support.shape_server import ShapeServer
from tests.support.shape_topic import ShapeTopic
from tests.support.shape_traffic import Traffic

CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLE_COUNT: Final = 500 if IS_LONG else 10
AIMS: Final = st.sampled_from(["anywhere", "at the topic", "at the shape"])


@pytest.fixture(scope="module")
def hasty_server(
    broker: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShapeServer]:
    """A server that lets live requests wait for a moment only."""
    times = ("long.poll.ms", "events.ms")
    given = [f"--set=shapes.http.{name}=50" for name in times]
    with ShapeServer(broker.bootstrap, tmp_path_factory.mktemp("hasty"), *given) as server:
        yield server


def _aim(case: Case[Any], aim: str, topic: str, handle: str) -> None:
    """Most texts that are made up name nothing; let some name what there is."""
    if aim == "anywhere":
        return
    if "table" in case.query:
        case.query["table"] = topic
        case.query.pop("where", None)
        case.query.pop("columns", None)
    if aim == "at the shape":
        if "handle" in case.query:
            case.query["handle"] = handle
        if "handle" in case.path_parameters:
            case.path_parameters["handle"] = handle


def _can_be_wrong(operation: APIOperation[Any, Any, Any, Any]) -> bool:
    """Whether it takes more than texts in its path, which may be any."""
    return bool(operation.body) or bool(operation.query)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_no_request_gets_an_answer_that_the_document_does_not_tell_of(
    hasty_server: ShapeServer, topic: ShapeTopic, mode: GenerationMode
) -> None:
    Traffic(topic).add(20)
    schema = schemathesis.openapi.from_url(f"{hasty_server.base}/openapi.json")
    asked = {"table": topic.name, "offset": "-1"}
    tried: dict[str, int] = {}
    with requests.Session() as session:
        session.trust_env = False
        for result in schema.get_all_operations():
            assert isinstance(result, Ok), result
            operation = result.ok()
            if mode is GenerationMode.NEGATIVE and not _can_be_wrong(operation):
                continue

            @settings(max_examples=EXAMPLE_COUNT, database=None)
            @given(case=operation.as_strategy(generation_mode=mode), aim=AIMS)
            def probe(case: Case[Any], aim: str) -> None:
                handle = session.get(hasty_server.url, params=asked).headers["electric-handle"]
                _aim(case, aim, topic.name, handle)
                answer = case.call_and_validate(session=session, checks=CHECKS)
                tried[str(answer.status_code)] = tried.get(str(answer.status_code), 0) + 1

            probe()
        health = session.get(f"{hasty_server.base}/v1/health").json()
    assert health == {"status": "active"}
    expected = {"200", "400"} if mode is GenerationMode.NEGATIVE else {"200", "400", "404"}
    assert expected <= set(tried), tried
