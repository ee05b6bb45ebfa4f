"""The options of a write to a topic: declared, parsed and checked."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from varve.embedded.topic import parse_codec
from varve.foundation.errors import InvalidRequest
from varve.jobs.data_source_options import (
    OptionUse,
    option,
    parse_count,
    parse_declared,
    parse_flag,
    parse_list,
    parse_positive,
    settings_option,
)
from varve.jobs.sink.staging import ONCE_PREFIX
from varve.jobs.tier.bucket import Bucket
from varve.kafka_client.address import BOOTSTRAP, ClusterAddress, parse_cluster_address
from varve.records import Codec

_SPARK_OPTIONS: Final = ("checkpointlocation", "path")
_SINK_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_sink_id(text: str) -> str:
    """1 to 100 letters, digits, `.`, `_` and `-`.

    Raises ValueError for an id that cannot name a folder.
    """
    if not _SINK_ID.fullmatch(text) or text.startswith(ONCE_PREFIX):
        raise ValueError(
            "it takes 1 to 100 letters, digits, '.', '_' and '-', the first a letter or digit, and "
            f"does not begin with {ONCE_PREFIX}"
        )
    return text


def _parse_directories(text: str) -> tuple[str, ...]:
    """Paths, separated by commas."""
    return tuple(os.path.abspath(path) for path in parse_list(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """A write to one topic, in directories or through a server.

    `sink_id` is None if a batch write takes a new id and a stream the id of its query.
    """

    topic: str = option("", "topic", str, "the topic; required")
    directories: tuple[str, ...] = option(
        (),
        "directory",
        _parse_directories,
        "the log directory on the driver's machine, or all directories of one store",
    )
    server: ClusterAddress | None = None
    creates_topic: bool = option(
        False, "createTopic", parse_flag, "creates the topic if it does not exist"
    )
    partitions: int | None = option(
        None,
        "partitions",
        parse_positive,
        "how many partitions a new topic has",
        default_text="that of the store or server",
    )
    topic_settings: tuple[tuple[str, str], ...] = settings_option(
        "topic.", "a setting of a new topic, such as `topic.cleanup.policy`"
    )
    codec: Codec = option(
        Codec.LZ4,
        "codec",
        parse_codec,
        "how batches are compressed; a topic with a `compression.type` keeps to it",
        values=", ".join(f"`{codec.name.lower()}`" for codec in Codec),
        default_text="`lz4`",
    )
    batch_bytes: int | None = option(
        None,
        "batchBytes",
        parse_positive,
        "how many bytes of records a batch holds, up to 1 MiB and `max.message.bytes` of the topic",
        default_text="as many as possible",
    )
    staging_url: str = option(
        "",
        "stagingUrl",
        str,
        "the object store for batches before the commit, which tasks and driver reach; required "
        "with a server",
        values="a URL",
        default_text="`DIRECTORY.staging`",
    )
    staging_settings: tuple[tuple[str, str], ...] = settings_option(
        "store.", "a setting of the object store of `stagingUrl`"
    )
    store_settings: tuple[tuple[str, str], ...] = settings_option(
        "open.",
        "a setting with which the store of the directory is opened, such as "
        "`open.varve.tier.store.region`",
    )
    sink_id: str | None = option(
        None,
        "sinkId",
        check_sink_id,
        "the name of the sink; with `epoch` for a batch write",
        default_text="the name or id of the query",
    )
    query_name: str | None = option(
        None, "queryName", str, "Spark's name of the query", use=OptionUse.STREAM
    )
    epoch: int | None = option(
        None,
        "epoch",
        parse_count,
        "the number of a batch write, which with `sinkId` is appended once",
        use=OptionUse.BATCH,
    )
    skips_repeated: bool = option(
        False,
        "skipRepeated",
        parse_flag,
        "skips an epoch that is committed, even where it comes again with other rows",
    )
    lock_wait_ms: int = option(
        60_000, "lockWaitMs", parse_count, "how long a commit waits for the lock of the directory"
    )
    transaction_timeout_ms: int = option(
        900_000,
        "transactionTimeoutMs",
        parse_positive,
        "how long a commit may take until the server aborts it",
    )

    @property
    def staging(self) -> Bucket:
        url = self.staging_url or f"file:{quote(self.directories[0])}.staging"
        return Bucket(url, self.staging_settings)


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parses the options of a write; names are case-insensitive."""
    by_name = {name.lower(): text for name, text in options.items()}
    fields = parse_declared(SinkOptions, by_name, operation="write", other_names=_SPARK_OPTIONS)
    write = SinkOptions(**fields, server=parse_cluster_address(by_name, client_id="varve-spark"))
    _check_location(write)
    if not write.creates_topic and (write.topic_settings or write.partitions is not None):
        raise InvalidRequest(
            "options partitions and topic.NAME are for a topic that is created: add "
            "createTopic=true"
        )
    return write


def _check_location(options: SinkOptions) -> None:
    if options.server is None and not options.directories:
        raise InvalidRequest(
            "option directory is missing: name the log directory to write to, or its server "
            f"with {BOOTSTRAP}"
        )
    if options.server is not None and (options.directories or options.store_settings):
        raise InvalidRequest(
            f"give {BOOTSTRAP} or directory, not both: a server writes to its directory itself"
        )
    if options.server is not None and not options.staging_url:
        raise InvalidRequest(
            "option stagingUrl is missing: an object store that tasks and the driver reach, for "
            "batches before the commit"
        )
    if options.staging_settings and not options.staging_url:
        raise InvalidRequest("options store.NAME are for the object store of stagingUrl: give it")
    if not options.topic:
        raise InvalidRequest("option topic is missing: name the topic to write to")
