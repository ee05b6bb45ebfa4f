"""The options of a sink, and the topic that it writes to: found or created in a log directory or
through a server.

Invariant  a topic or directory is created only if that is requested, not by a mistyped name.
Threads    any thread; the caller supplies the wait between attempts to lock a directory.
"""

import os
import random as random_module
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from varve.commit_log import LogSettings
from varve.commit_log.directory_files import encode_topic_id
from varve.disk import RealFileSystem
from varve.embedded import Store
from varve.embedded import open as open_store
from varve.embedded.store_settings import parse_store_settings
from varve.embedded.topic import parse_codec
from varve.embedded.topic_table import TopicEntry, TopicState, read_newest_table
from varve.foundation.clock import Clock
from varve.foundation.errors import InvalidRequest, Locked, NotFound
from varve.foundation.settings import declared, parse_settings
from varve.jobs.data_source_options import (
    OptionUse,
    option,
    parse_count,
    parse_declared,
    parse_directories,
    parse_flag,
    parse_positive,
    settings_option,
)
from varve.jobs.sink.batch_builder import SinkTarget
from varve.jobs.sink.commit import DirectoryCommit, topic_id_of
from varve.jobs.sink.sink_state import SinkStateFile
from varve.jobs.sink.staging import ONCE_PREFIX
from varve.jobs.tier.bucket import Bucket
from varve.kafka_client.address import BOOTSTRAP, ClusterAddress, parse_cluster_address
from varve.kafka_client.client import DEFAULT_COUNT, KafkaClient, TopicMetadata, open_client
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """A write to one topic, in directories or through a server.

    `sink_id` is None if a batch write takes a new id and a stream the id of its query.
    """

    topic: str = option("", "topic", str, "the topic; required")
    directories: tuple[str, ...] = option(
        (),
        "directory",
        parse_directories,
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


def parse_sink_options(options: Mapping[str, str], use: OptionUse = OptionUse.ALL) -> SinkOptions:
    """Parses the options of a write; names are case-insensitive.

    Raises InvalidRequest for an option of streams in a batch write, and the reverse.
    """
    by_name = {name.lower(): text for name, text in options.items()}
    fields = parse_declared(
        SinkOptions, by_name, operation="write", other_names=_SPARK_OPTIONS, use=use
    )
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


# The topic


_TARGET_SETTINGS: Final = (
    "cleanup.policy",
    "max.message.bytes",
    "segment.bytes",
    *(
        declaration.kafka_name
        for declaration in declared(LogSettings)
        if declaration.kafka_name.startswith("compression.")
    ),
)
"""The settings of a topic that decide how its batches are built, as a server returns them."""
_LOCK_RETRY_MS: Final = 100
"""Pause between two attempts to lock a directory."""

Wait = Callable[[float], object]
"""Sleeps for a number of seconds."""


def find_target(options: SinkOptions, wait: Wait) -> SinkTarget:
    """Finds the topic, or creates it if that is requested; raises NotFound."""
    if options.server is not None:
        return find_served_target(open_client(options.server), options)
    return _find_in_directory(options, wait)


# In a directory


def _find_in_directory(options: SinkOptions, wait: Wait) -> SinkTarget:
    """Looks up the topic table, which needs no lock; opens the store for other topics."""
    table = read_newest_table(RealFileSystem(), options.directories)
    entry = table.topics.get(options.topic)
    if entry is not None and entry.id is not None and entry.state is TopicState.READY:
        return _target_of_entry(options, entry)
    if not options.creates_topic and not any(map(os.path.isdir, options.directories)):
        raise NotFound(
            f"there is no log directory {' or '.join(options.directories)}: correct option "
            "directory, or let the write create it with createTopic=true"
        )
    with open_directory(options, wait) as store:
        return _open_target(store, options)


def _open_target(store: Store, options: SinkOptions) -> SinkTarget:
    if options.creates_topic:
        topic = store.create_topic(
            options.topic,
            partitions=options.partitions,
            settings=dict(options.topic_settings) or None,
            exist_ok=True,
        )
    else:
        try:
            topic = store.topic(options.topic)
        except NotFound:
            names = ", ".join(existing.name for existing in store.topics()) or "none"
            raise NotFound(
                f"{options.directories[0]} holds no topic {options.topic!r:.260}: create it, or "
                f"let the write create it with createTopic=true (topics: {names:.400})"
            ) from None
    return SinkTarget(topic.name, topic_id_of(topic), topic.partition_count, topic.settings)


def _target_of_entry(options: SinkOptions, entry: TopicEntry) -> SinkTarget:
    # Settings may have been altered since creation; the partition count decides where keys go.
    entry.check_same(options.partitions, None, exist_ok=True)
    assert entry.id is not None
    defaults = parse_store_settings(dict(options.store_settings)).defaults
    settings = parse_settings(LogSettings, entry.settings, f"topic {entry.name}", base=defaults)
    return SinkTarget(entry.name, encode_topic_id(entry.id), entry.partition_count, settings)


@contextmanager
def open_directory(options: SinkOptions, wait: Wait) -> Iterator[Store]:
    """Opens the store of the directories without background work; raises Locked on timeout.

    Sinks take turns: each holds the lock for one commit.
    """
    store = _open_when_unlocked(options, wait)
    with store:
        yield store


def _open_when_unlocked(options: SinkOptions, wait: Wait) -> Store:
    waited_ms = 0
    while True:
        try:
            settings = dict(options.store_settings)
            return open_store(options.directories, settings=settings, maintain=False)
        except Locked as error:
            if waited_ms >= options.lock_wait_ms:
                remedy = (
                    f", or write through it with options {BOOTSTRAP}={error.address} and stagingUrl"
                    if error.address
                    else ""
                )
                raise Locked(
                    f"{error}{remedy} (a sink locks the directory for its commit; it waited "
                    f"{waited_ms} ms, the limit of option lockWaitMs)"
                ) from error
        wait(_LOCK_RETRY_MS / 1000)
        waited_ms += _LOCK_RETRY_MS


def finish_open_transactions(options: SinkOptions, *, clock: Clock, wait: Wait) -> list[str]:
    """Ends the transactions that killed writes left open; returns the ids of their sinks.

    Every commit does this too. Call it for a directory that no sink will write to again.
    """
    with open_directory(options, wait) as store:
        return open_commit(store, options, clock=clock).finish_open_transactions()


def open_commit(store: Store, options: SinkOptions, *, clock: Clock) -> DirectoryCommit:
    """The commits to an open store of these directories."""
    sinks = SinkStateFile(RealFileSystem(), options.directories)
    return DirectoryCommit(store, sinks, clock=clock, random=random_module.Random())


# Through a server


def find_served_target(client: KafkaClient, options: SinkOptions) -> SinkTarget:
    """Finds the topic, or creates it if that is requested; raises NotFound."""
    topic = _find_served_topic(client, options)
    effective = client.topic_settings(topic.name)
    chosen = {name: value for name, value in effective.items() if name in _TARGET_SETTINGS}
    settings = parse_settings(LogSettings, chosen, f"topic {topic.name}")
    count = len(topic.leaders)
    if options.partitions not in (None, count):
        raise InvalidRequest(
            f"topic {topic.name} has {count} partitions, not the {options.partitions} of option "
            "partitions: leave it out, or name another topic"
        )
    return SinkTarget(topic.name, encode_topic_id(topic.id), count, settings)


def _find_served_topic(client: KafkaClient, options: SinkOptions) -> TopicMetadata:
    if options.creates_topic:
        return client.create_topic(
            options.topic,
            partitions=options.partitions or DEFAULT_COUNT,
            settings=dict(options.topic_settings),
            exist_ok=True,
        )
    try:
        return client.topic(options.topic)
    except NotFound as error:
        raise NotFound(
            f"{error}: create it, or let the write create it with createTopic=true"
        ) from error
