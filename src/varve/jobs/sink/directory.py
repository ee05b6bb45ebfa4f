"""The log directory that a sink writes to: its topic as writers see it, and its store opened.

Invariant  a directory is not made by a mistyped name: only a write that makes its topic makes it.
Threads    any; the wait for the lock is the caller's.
"""

import os
import random as random_module
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from varve.commit_log import LogSettings
from varve.commit_log.partition_metadata import encode_topic_id
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
from varve.foundation.errors import Locked, NotFound
from varve.foundation.settings import parse_settings
from varve.jobs.sink.batches import SinkTarget
from varve.jobs.sink.commit import SinkCommit, topic_id_of
from varve.jobs.sink.ledger import SinkLedger
from varve.jobs.sink.options import SinkOptions

_PAUSE_MS: Final = 100

Wait = Callable[[float], object]
"""Lets so many seconds pass."""


def find_target(options: SinkOptions, wait: Wait) -> SinkTarget:
    """The topic, made if that is asked for; raises NotFound.

    A topic that the table has is found without the lock.
    """
    table = _read_table(options.directories, RealFileSystem())
    entry = table.topics.get(options.topic)
    if entry is not None and entry.id is not None and entry.state is TopicState.READY:
        return _make_target(options, entry)
    if not options.creates_topic and not any(map(os.path.isdir, options.directories)):
        raise NotFound(
            f"there is no log directory {' or '.join(options.directories)}: mend option directory, "
            "or let the write make it with createTopic=true"
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
            known = ", ".join(one.name for one in store.topics()) or "none"
            raise NotFound(
                f"{options.directories[0]} holds no topic {options.topic!r:.260}: make it, or let "
                f"the write make it with createTopic=true (topics: {known:.400})"
            ) from None
    return SinkTarget(topic.name, topic_id_of(topic), topic.partition_count, topic.settings)


def _make_target(options: SinkOptions, entry: TopicEntry) -> SinkTarget:
    # Its settings may have been altered since it was made; keys go by the number of partitions.
    entry.check_same(options.partitions, None, exist_ok=True)
    assert entry.id is not None
    defaults = parse_store_settings(dict(options.store_settings)).defaults
    settings_of = parse_settings(LogSettings, entry.settings, f"topic {entry.name}", base=defaults)
    return SinkTarget(entry.name, encode_topic_id(entry.id), entry.partition_count, settings_of)


def _read_table(directories: tuple[str, ...], fs: FileSystem) -> TopicTable:
    tables = []
    for directory in directories:
        path = f"{directory}/{TOPICS_FILE}"
        if fs.exists(path):
            tables.append(decode_topics(fs.read(path), where=path))
    return newest(tables)


@contextmanager
def open_directory(options: SinkOptions, wait: Wait) -> Iterator[Store]:
    """The store of the directory, without background work; raises Locked after a time of waiting.

    Sinks take turns: each holds the lock for one commit.
    """
    store = _open_in_turn(options, wait)
    with store:
        yield store


def _open_in_turn(options: SinkOptions, wait: Wait) -> Store:
    waited_ms = 0
    while True:
        try:
            settings = dict(options.store_settings)
            return open_store(options.directories, settings=settings, maintain=False)
        except Locked as error:
            if waited_ms >= options.lock_wait_ms:
                raise Locked(
                    f"{error} (a sink appends to the directory itself; it waited {waited_ms} ms "
                    "for its turn, which option lockWaitMs changes)"
                ) from error
        wait(_PAUSE_MS / 1000)
        waited_ms += _PAUSE_MS


def settle_sinks(options: SinkOptions, *, clock: Clock, wait: Wait) -> list[str]:
    """Ends the transactions that killed writes left open; gives the ids of their sinks.

    Every commit does so too: this is for a directory that no sink will write to again.
    """
    with open_directory(options, wait) as store:
        ledger = SinkLedger(RealFileSystem(), options.directories)
        return SinkCommit(store, ledger, clock=clock, random=random_module.Random()).settle()
