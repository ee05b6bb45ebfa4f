"""Answers to requests whose handler failed: the error wherever the response has room for it.

A response with an error of its own carries it there. Others repeat what was asked for, topic by
topic and partition by partition, each with the error.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from varve.wire import Api, ApiKey, ErrorCode, Message
from varve.wire.schema import Versions, WireField

_ALL_VERSIONS: Final = Versions.parse("0+")


@dataclass(frozen=True, slots=True)
class _Mirror:
    """A list of the request and the one of the response that answers it, element by element.

    `keys` are the fields that both have; `a=b` is one that is called otherwise in the response,
    and `=b` the element itself.
    """

    asked: str
    told: str
    keys: tuple[str, ...]
    inner: "_Mirror | None" = None
    versions: Versions = _ALL_VERSIONS


def _topics(partitions: _Mirror) -> tuple[_Mirror, ...]:
    return (_Mirror("topics", "topics", ("name",), partitions),)


_BY_INDEX: Final = _Mirror("partitions", "partitions", ("partition_index",))
_RESOURCE: Final = ("resource_type", "resource_name")
_MIRRORS: Final[dict[ApiKey, tuple[_Mirror, ...]]] = {
    ApiKey.PRODUCE: (
        _Mirror(
            "topic_data",
            "responses",
            ("name", "topic_id"),
            _Mirror("partition_data", "partition_responses", ("index",)),
        ),
    ),
    ApiKey.FETCH: (
        _Mirror(
            "topics",
            "responses",
            ("topic", "topic_id"),
            _Mirror("partitions", "partitions", ("partition=partition_index",)),
        ),
    ),
    ApiKey.LIST_OFFSETS: _topics(_BY_INDEX),
    ApiKey.METADATA: (_Mirror("topics", "topics", ("name", "topic_id")),),
    ApiKey.OFFSET_COMMIT: (_Mirror("topics", "topics", ("name", "topic_id"), _BY_INDEX),),
    ApiKey.OFFSET_FETCH: (
        _Mirror(
            "topics",
            "topics",
            ("name",),
            _Mirror("partition_indexes", "partitions", ("=partition_index",)),
            Versions(0, 1),
        ),
        _Mirror("groups", "groups", ("group_id",), versions=Versions.parse("8+")),
    ),
    ApiKey.FIND_COORDINATOR: (_Mirror("coordinator_keys", "coordinators", ("=key",)),),
    ApiKey.DESCRIBE_GROUPS: (_Mirror("groups", "groups", ("=group_id",)),),
    ApiKey.CREATE_TOPICS: (_Mirror("topics", "topics", ("name",)),),
    ApiKey.DELETE_TOPICS: (
        _Mirror("topic_names", "responses", ("=name",), versions=Versions(0, 5)),
        _Mirror("topics", "responses", ("name", "topic_id"), versions=Versions.parse("6+")),
    ),
    ApiKey.DELETE_RECORDS: _topics(_BY_INDEX),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        _Mirror(
            "topics", "topics", ("topic",), _Mirror("partitions", "partitions", ("partition",))
        ),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        _Mirror(
            "v3_and_below_topics",
            "results_by_topic_v3_and_below",
            ("name",),
            _Mirror("partitions", "results_by_partition", ("=partition_index",)),
        ),
    ),
    ApiKey.TXN_OFFSET_COMMIT: _topics(_BY_INDEX),
    ApiKey.CREATE_ACLS: (_Mirror("creations", "results", ()),),
    ApiKey.DELETE_ACLS: (_Mirror("filters", "filter_results", ()),),
    ApiKey.DESCRIBE_CONFIGS: (_Mirror("resources", "results", _RESOURCE),),
    ApiKey.ALTER_CONFIGS: (_Mirror("resources", "responses", _RESOURCE),),
    ApiKey.CREATE_PARTITIONS: (_Mirror("topics", "results", ("name",)),),
    ApiKey.DELETE_GROUPS: (_Mirror("groups_names", "results", ("=group_id",)),),
    ApiKey.ELECT_LEADERS: (
        _Mirror(
            "topic_partitions",
            "replica_election_results",
            ("topic",),
            _Mirror("partitions", "partition_result", ("=partition_id",)),
        ),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (_Mirror("resources", "responses", _RESOURCE),),
    ApiKey.ALTER_CLIENT_QUOTAS: (_Mirror("entries", "entries", ("entity",)),),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        _Mirror("deletions", "results", ("name=user",)),
        _Mirror("upsertions", "results", ("name=user",)),
    ),
    ApiKey.DESCRIBE_PRODUCERS: _topics(
        _Mirror("partition_indexes", "partitions", ("=partition_index",))
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        _Mirror("transactional_ids", "transaction_states", ("=transactional_id",)),
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (_Mirror("group_ids", "groups", ("=group_id",)),),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (_Mirror("topics", "topics", ("name",)),),
}


def failed_response(
    api: Api,
    request: Message,
    version: int,
    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR,
) -> Message | None:
    """The response that tells the error; None where the version has no room for it."""
    response: Any = api.response()
    place = _find_place(api.response, "error_code")
    if place is not None and version in place.versions:
        response.error_code = code
        return response  # type: ignore[no-any-return]  # made from the class
    mirrors = [one for one in _MIRRORS.get(api.key, ()) if version in one.versions]
    asked = [getattr(request, one.asked) for one in mirrors]
    if not mirrors or None in asked:
        return None
    for mirror, elements in zip(mirrors, asked, strict=True):
        getattr(response, mirror.told).extend(_mirrored(api.response, mirror, elements, code))
    return response  # type: ignore[no-any-return]  # made from the class


def _find_place(cls: type, name: str) -> WireField | None:
    return next((one.metadata["wire"] for one in fields(cls) if one.name == name), None)


def _mirrored(cls: type, mirror: _Mirror, elements: Sequence[Any], code: ErrorCode) -> list[Any]:
    place = _find_place(cls, mirror.told)
    assert place is not None
    assert place.type.element is not None
    kind = place.type.element.struct
    assert kind is not None
    return [_answered(kind, mirror, element, code) for element in elements]


def _answered(kind: type, mirror: _Mirror, element: Any, code: ErrorCode) -> Any:
    answer = kind()
    for key in mirror.keys:
        asked, _, told = key.partition("=")
        value = getattr(element, asked) if asked else element
        if value is not None:
            setattr(answer, told or asked, value)
    if mirror.inner is not None:
        inner = _mirrored(kind, mirror.inner, getattr(element, mirror.inner.asked), code)
        setattr(answer, mirror.inner.told, inner)
    for name in ("error_code", "partition_error_code"):
        if _find_place(kind, name) is not None:
            setattr(answer, name, code)
    return answer
