"""Finds or creates the topic that a sink writes to, in a log directory or through a server.

Invariant  a topic or directory is created only if that is requested, not by a mistyped name.
Threads    any thread; the caller supplies the wait between attempts to lock a directory.
"""

import os
import random as random_module
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from varve.commit_log import LogSettings
from varve.commit_log.directory_files import encode_topic_id
from varve.disk import FileSystem, RealFileSystem
from varve.embedded import Store
from varve.embedded import open as open_store
from varve.embedded.store_settings import parse_store_settings
from varve.embedded.topic_table import (
    TOPICS_FILE,
    TopicEntry,
    TopicState,
    TopicTable,
    decode_topics,
    newest,
)
from varve.foundation.clock import Clock
from varve.foundation.errors import InvalidRequest, Locked, NotFound
from varve.foundation.settings import declared, parse_settings
from varve.jobs.sink.batch_builder import SinkTarget
from varve.jobs.sink.commit import DirectoryCommit, topic_id_of
from varve.jobs.sink.options import SinkOptions
from varve.jobs.sink.sink_state import SinkStateFile
from varve.kafka_client.client import DEFAULT_COUNT, KafkaClient, TopicMetadata, open_client

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
    table = _read_table(options.directories, RealFileSystem())
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


def _read_table(directories: tuple[str, ...], fs: FileSystem) -> TopicTable:
    tables = []
    for directory in directories:
        path = f"{directory}/{TOPICS_FILE}"
        if fs.exists(path):
            tables.append(decode_topics(fs.read(path), where=path))
    return newest(tables)


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
                raise Locked(
                    f"{error} (a sink locks the directory for its commit; it waited {waited_ms} "
                    "ms, the limit of option lockWaitMs)"
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
