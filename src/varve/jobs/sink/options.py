"""What a user asks of a write: options as text, checked and made values.

Invariant  an option that is unknown, or of the wrong form, is refused with the ones there are.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import quote

from varve.embedded.packing import parse_codec
from varve.foundation.errors import InvalidRequest
from varve.jobs.sink.staging import ONCE_PREFIX
from varve.jobs.tier.bucket import Bucket
from varve.kafka_client.address import (
    BOOTSTRAP,
    SERVER_NAMES,
    ClusterAddress,
    parse_cluster_address,
)
from varve.records import Codec

T = TypeVar("T")

_TOPIC_PREFIX: Final = "topic."
_STORE_PREFIX: Final = "store."
_OPEN_PREFIX: Final = "open."
_NAMES: Final = (
    "directory",
    "topic",
    "codec",
    "batchBytes",
    "createTopic",
    "partitions",
    "stagingUrl",
    "sinkId",
    "epoch",
    "skipRepeated",
    "lockWaitMs",
    "transactionTimeoutMs",
)
_SPARKS: Final = ("queryname", "checkpointlocation", "path")
_SINK_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_WORDS: Final = {"true": True, "false": False}
_LOCK_WAIT_MS: Final = 60_000
_TRANSACTION_TIMEOUT_MS: Final = 900_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """A write to one topic, in directories or through a server.

    `sink_id` is None where a fresh one is meant, or the query's. `store_settings` are those of the
    directory's store, `topic_settings` those of a topic to be made.
    """

    directories: tuple[str, ...]
    topic: str
    staging: Bucket
    codec: Codec = Codec.LZ4
    batch_bytes: int | None = None
    creates_topic: bool = False
    partitions: int | None = None
    topic_settings: tuple[tuple[str, str], ...] = ()
    store_settings: tuple[tuple[str, str], ...] = ()
    sink_id: str | None = None
    query_name: str | None = None
    epoch: int | None = None
    skips_repeated: bool = False
    lock_wait_ms: int = _LOCK_WAIT_MS
    server: ClusterAddress | None = None
    transaction_timeout_ms: int = _TRANSACTION_TIMEOUT_MS


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options of a write; names are the same in any case."""
    options = {name.lower(): text for name, text in given.items()}
    _check_names(options)
    directories = tuple(
        os.path.abspath(one.strip()) for one in options.get("directory", "").split(",") if one
    )
    server = parse_cluster_address(options, client_id="varve-spark")
    _check_place(options, directories, server)
    if not options.get("topic"):
        raise InvalidRequest("option topic is missing: name the topic to write to")
    made = _behind(_TOPIC_PREFIX, options)
    creates_topic = _read(options, "createTopic", _parse_flag, default=False)
    if not creates_topic and (made or "partitions" in options):
        raise InvalidRequest(
            "options partitions and topic.NAME are for a topic that is made: add createTopic=true"
        )
    return SinkOptions(
        directories=directories,
        topic=options["topic"],
        staging=_make_staging(options, directories),
        codec=_read(options, "codec", parse_codec, default=Codec.LZ4),
        batch_bytes=_read(options, "batchBytes", _parse_positive, default=None),
        creates_topic=creates_topic,
        partitions=_read(options, "partitions", _parse_positive, default=None),
        topic_settings=tuple(sorted(made.items())),
        store_settings=tuple(sorted(_behind(_OPEN_PREFIX, options).items())),
        sink_id=_read(options, "sinkId", check_sink_id, default=None),
        query_name=options.get("queryname"),
        epoch=_read(options, "epoch", _parse_count, default=None),
        skips_repeated=_read(options, "skipRepeated", _parse_flag, default=False),
        lock_wait_ms=_read(options, "lockWaitMs", _parse_count, default=_LOCK_WAIT_MS),
        server=server,
        transaction_timeout_ms=_read(
            options, "transactionTimeoutMs", _parse_positive, default=_TRANSACTION_TIMEOUT_MS
        ),
    )


def check_sink_id(text: str) -> str:
    """A sink's id as it was given; raises ValueError for one that cannot name a folder."""
    if not _SINK_ID.fullmatch(text) or text.startswith(ONCE_PREFIX):
        raise ValueError(
            "it takes 1 to 100 letters, digits, '.', '_' and '-', the first a letter or digit, and "
            f"does not begin with {ONCE_PREFIX}"
        )
    return text


def _check_names(options: Mapping[str, str]) -> None:
    known = {*map(str.lower, _NAMES), *_SPARKS, *SERVER_NAMES}
    for name in options:
        if name not in known and not name.startswith((_TOPIC_PREFIX, _STORE_PREFIX, _OPEN_PREFIX)):
            raise InvalidRequest(
                f"there is no option {name!r:.80} of a write (options: {', '.join(_NAMES)}; "
                f"{_TOPIC_PREFIX}NAME for a topic that is made, {_STORE_PREFIX}NAME for the object "
                f"store of stagingUrl, {_OPEN_PREFIX}NAME for the store of the directory; for a "
                f"server {', '.join(SERVER_NAMES)})"
            )


def _check_place(
    options: Mapping[str, str], directories: tuple[str, ...], server: ClusterAddress | None
) -> None:
    if server is None:
        if not directories:
            raise InvalidRequest(
                "option directory is missing: name the log directory to write to, or its server "
                f"with {BOOTSTRAP}"
            )
        return
    if directories or _behind(_OPEN_PREFIX, options):
        raise InvalidRequest(
            f"give {BOOTSTRAP} or directory, not both: a server writes to its directory itself"
        )
    if "stagingurl" not in options:
        raise InvalidRequest(
            "option stagingUrl is missing: a place that tasks and the driver reach, where batches "
            "lie until the server has them"
        )


def _behind(prefix: str, options: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(prefix): text for name, text in options.items() if name.startswith(prefix)
    }


def _make_staging(options: Mapping[str, str], directories: tuple[str, ...]) -> Bucket:
    settings = _behind(_STORE_PREFIX, options)
    url = options.get("stagingurl")
    if url is None and settings:
        raise InvalidRequest("options store.NAME are for the object store of stagingUrl: give it")
    place = url or f"file:{quote(directories[0])}.staging"
    return Bucket(place, tuple(sorted(settings.items())))


def _read(options: Mapping[str, str], name: str, parse: Callable[[str], T], *, default: T) -> T:
    text = options.get(name.lower())
    if text is None:
        return default
    try:
        return parse(text)
    except ValueError as error:
        raise InvalidRequest(f"option {name}={text!r:.200} cannot be used: {error}") from error


def _parse_flag(text: str) -> bool:
    if text.strip().lower() not in _WORDS:
        raise ValueError("write true or false")
    return _WORDS[text.strip().lower()]


def _parse_count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError("it must be at least 0")
    return value


def _parse_positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError("it must be at least 1")
    return value
