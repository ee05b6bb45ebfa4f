"""Errors in responses: of a whole request whose handler raised one, and of its parts.

A response with an error code of its own carries the error there. Others repeat the requested topics
and partitions, each with the error.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Final

from varve.foundation.errors import StoreError
from varve.wire import Api, ApiKey, ErrorCode, Message
from varve.wire.errors import code_for
from varve.wire.schema import Versions, WireField

_ALL_VERSIONS: Final = Versions.parse("0+")


@dataclass(frozen=True, slots=True)
class ErrorShape:
    """A list field of the request and the one of the response that has an element for each.

    `keys` are the fields that both elements have; `a=b` is called `b` in the response, and `=b` is
    the element itself.
    """

    requested: str
    reported: str
    keys: tuple[str, ...]
    inner: "ErrorShape | None" = None
    versions: Versions = _ALL_VERSIONS


def _topics(partitions: ErrorShape) -> tuple[ErrorShape, ...]:
    return (ErrorShape("topics", "topics", ("name",), partitions),)


_BY_INDEX: Final = ErrorShape("partitions", "partitions", ("partition_index",))
_RESOURCE: Final = ("resource_type", "resource_name")
_ERROR_SHAPES: Final[dict[ApiKey, tuple[ErrorShape, ...]]] = {
    ApiKey.PRODUCE: (
        ErrorShape(
            "topic_data",
            "responses",
            ("name", "topic_id"),
            ErrorShape("partition_data", "partition_responses", ("index",)),
        ),
    ),
    ApiKey.FETCH: (
        ErrorShape(
            "topics",
            "responses",
            ("topic", "topic_id"),
            ErrorShape("partitions", "partitions", ("partition=partition_index",)),
        ),
    ),
    ApiKey.LIST_OFFSETS: _topics(_BY_INDEX),
    ApiKey.METADATA: (ErrorShape("topics", "topics", ("name", "topic_id")),),
    ApiKey.OFFSET_COMMIT: (ErrorShape("topics", "topics", ("name", "topic_id"), _BY_INDEX),),
    ApiKey.OFFSET_FETCH: (
        ErrorShape(
            "topics",
            "topics",
            ("name",),
            ErrorShape("partition_indexes", "partitions", ("=partition_index",)),
            Versions(0, 1),
        ),
        ErrorShape("groups", "groups", ("group_id",), versions=Versions.parse("8+")),
    ),
    ApiKey.FIND_COORDINATOR: (ErrorShape("coordinator_keys", "coordinators", ("=key",)),),
    ApiKey.DESCRIBE_GROUPS: (ErrorShape("groups", "groups", ("=group_id",)),),
    ApiKey.CREATE_TOPICS: (ErrorShape("topics", "topics", ("name",)),),
    ApiKey.DELETE_TOPICS: (
        ErrorShape("topic_names", "responses", ("=name",), versions=Versions(0, 5)),
        ErrorShape("topics", "responses", ("name", "topic_id"), versions=Versions.parse("6+")),
    ),
    ApiKey.DELETE_RECORDS: _topics(_BY_INDEX),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        ErrorShape(
            "topics", "topics", ("topic",), ErrorShape("partitions", "partitions", ("partition",))
        ),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        ErrorShape(
            "v3_and_below_topics",
            "results_by_topic_v3_and_below",
            ("name",),
            ErrorShape("partitions", "results_by_partition", ("=partition_index",)),
        ),
    ),
    ApiKey.WRITE_TXN_MARKERS: (
        ErrorShape(
            "markers",
            "markers",
            ("producer_id",),
            ErrorShape(
                "topics",
                "topics",
                ("name",),
                ErrorShape("partition_indexes", "partitions", ("=partition_index",)),
            ),
        ),
    ),
    ApiKey.TXN_OFFSET_COMMIT: _topics(_BY_INDEX),
    ApiKey.CREATE_ACLS: (ErrorShape("creations", "results", ()),),
    ApiKey.DELETE_ACLS: (ErrorShape("filters", "filter_results", ()),),
    ApiKey.DESCRIBE_CONFIGS: (ErrorShape("resources", "results", _RESOURCE),),
    ApiKey.ALTER_CONFIGS: (ErrorShape("resources", "responses", _RESOURCE),),
    ApiKey.CREATE_PARTITIONS: (ErrorShape("topics", "results", ("name",)),),
    ApiKey.DELETE_GROUPS: (ErrorShape("groups_names", "results", ("=group_id",)),),
    ApiKey.ELECT_LEADERS: (
        ErrorShape(
            "topic_partitions",
            "replica_election_results",
            ("topic",),
            ErrorShape("partitions", "partition_result", ("=partition_id",)),
        ),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (ErrorShape("resources", "responses", _RESOURCE),),
    ApiKey.ALTER_CLIENT_QUOTAS: (ErrorShape("entries", "entries", ("entity",)),),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        ErrorShape("deletions", "results", ("name=user",)),
        ErrorShape("upsertions", "results", ("name=user",)),
    ),
    ApiKey.DESCRIBE_PRODUCERS: _topics(
        ErrorShape("partition_indexes", "partitions", ("=partition_index",))
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        ErrorShape("transactional_ids", "transaction_states", ("=transactional_id",)),
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (ErrorShape("group_ids", "groups", ("=group_id",)),),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (ErrorShape("topics", "topics", ("name",)),),
}


@contextmanager
def reporting(*results: Any) -> Iterator[None]:
    """Stores an error raised in the block in these results; other results are not affected."""
    try:
        yield
    except (StoreError, TimeoutError) as error:
        for result in results:
            _set_error(result, code_for(error), str(error))


def error_response(
    api: Api, request: Message, version: int, code: ErrorCode, message: str | None = None
) -> Message | None:
    """The response that carries the error; None where the version has no field for it."""
    response: Any = api.response()
    field = _find_field(api.response, "error_code")
    if field is not None and version in field.versions:
        _set_error(response, code, message)
        return response  # type: ignore[no-any-return]  # made from the class
    shapes = [shape for shape in _ERROR_SHAPES.get(api.key, ()) if version in shape.versions]
    requested = [getattr(request, shape.requested) for shape in shapes]
    if not shapes or None in requested:
        return None
    for shape, elements in zip(shapes, requested, strict=True):
        failed = _failed_elements(api.response, shape, elements, code, message)
        getattr(response, shape.reported).extend(failed)
    return response  # type: ignore[no-any-return]  # made from the class


def _find_field(cls: type, name: str) -> WireField | None:
    return next((field.metadata["wire"] for field in fields(cls) if field.name == name), None)


def _failed_elements(
    cls: type, shape: ErrorShape, elements: Sequence[Any], code: ErrorCode, message: str | None
) -> list[Any]:
    field = _find_field(cls, shape.reported)
    assert field is not None
    assert field.type.element is not None
    kind = field.type.element.struct
    assert kind is not None
    return [_failed_element(kind, shape, element, code, message) for element in elements]


def _failed_element(
    kind: type, shape: ErrorShape, element: Any, code: ErrorCode, message: str | None
) -> Any:
    result = kind()
    for key in shape.keys:
        requested, _, reported = key.partition("=")
        value = getattr(element, requested) if requested else element
        if value is not None:
            setattr(result, reported or requested, value)
    if shape.inner is not None:
        elements = getattr(element, shape.inner.requested)
        inner = _failed_elements(kind, shape.inner, elements, code, message)
        setattr(result, shape.inner.reported, inner)
    _set_error(result, code, message)
    return result


def _set_error(result: Any, code: ErrorCode, message: str | None) -> None:
    for name in ("error_code", "partition_error_code"):
        if _find_field(type(result), name) is not None:
            setattr(result, name, code)
    if message is not None and _find_field(type(result), "error_message") is not None:
        result.error_message = message
