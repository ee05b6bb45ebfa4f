"""The topics of a store and their settings, kept in every log directory.

Layout     `varve-topics.json`: format, version, and by name each topic's id, partition count,
           settings and state; what all topics were given at run time. docs/formats/directory.md
Invariant  the version rises with every change; the highest one found counts.
Crash      written aside and renamed. A topic is written as `creating` before its partitions are
           made, as `growing` before it gets more, and as `deleting` before they go, so that an
           open finishes what a crash cut.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from varve.commit_log import LogSettings
from varve.commit_log.directory_files import decode_topic_id, encode_topic_id
from varve.commit_log.names import PARTITION_MAX, validate_topic_name
from varve.foundation.errors import Corrupt, StoreError, TopicExists, UnsupportedFormat
from varve.foundation.settings import parse_settings

TOPICS_FILE: Final = "varve-topics.json"
FORMAT: Final = 1


class TopicState(StrEnum):
    """Where a topic stands in its life."""

    CREATING = "creating"
    READY = "ready"
    GROWING = "growing"
    """In service; some of its partitions may not be made yet."""
    DELETING = "deleting"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEntry:
    """One topic; `id` is None where no partition says it, `settings` holds what was given."""

    name: str
    id: UUID | None
    partition_count: int
    settings: Mapping[str, str] = field(default_factory=dict)
    state: TopicState = TopicState.READY

    def in_state(self, state: TopicState) -> "TopicEntry":
        return replace(self, state=state)

    def check_same(
        self, partition_count: int | None, settings: Mapping[str, str] | None, *, exist_ok: bool
    ) -> None:
        """Raises TopicExists unless one that exists will do, and is as asked (None: anyhow)."""
        if not exist_ok:
            raise TopicExists(
                f"topic {self.name} exists already; use it or choose another name "
                "(create_topic takes it as it is with exist_ok=True; alter_topic changes settings)"
            )
        if partition_count not in (None, self.partition_count):
            raise TopicExists(
                f"topic {self.name} has {self.partition_count} partitions, not {partition_count}"
            )
        if settings is not None and dict(settings) != dict(self.settings):
            raise TopicExists(
                f"topic {self.name} has settings {dict(self.settings)}, not {dict(settings)}; "
                "alter_topic changes them"
            )


@dataclass(frozen=True, slots=True)
class TopicTable:
    """All topics at one version; version 0 is that of a store without the file."""

    version: int = 0
    topics: Mapping[str, TopicEntry] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Settings of every topic that has none of its own, given while the store was open."""

    def with_topics(self, *entries: TopicEntry) -> "TopicTable":
        """The next version, with these entries put in or replaced."""
        topics = {**self.topics, **{entry.name: entry for entry in entries}}
        return replace(self, version=self.version + 1, topics=topics)

    def without(self, name: str) -> "TopicTable":
        """The next version, without this topic."""
        kept = {key: entry for key, entry in self.topics.items() if key != name}
        return replace(self, version=self.version + 1, topics=kept)

    def with_defaults(self, defaults: Mapping[str, str]) -> "TopicTable":
        """The next version, with these settings for all topics."""
        return replace(self, version=self.version + 1, defaults=defaults)


def newest(tables: Iterable[TopicTable]) -> TopicTable:
    """The table that counts; an empty one when there is none."""
    return max(tables, key=lambda table: table.version, default=TopicTable())


def encode_topics(table: TopicTable) -> bytes:
    """The content of `varve-topics.json`."""
    topics = {
        entry.name: {
            "id": None if entry.id is None else encode_topic_id(entry.id),
            "partitions": entry.partition_count,
            "settings": dict(sorted(entry.settings.items())),
            "state": entry.state.value,
        }
        for _, entry in sorted(table.topics.items())
    }
    content: dict[str, Any] = {"format": FORMAT, "version": table.version, "topics": topics}
    if table.defaults:
        content["defaults"] = dict(sorted(table.defaults.items()))
    return (json.dumps(content, indent=1) + "\n").encode()


def decode_topics(data: bytes, where: str = TOPICS_FILE) -> TopicTable:
    """The table in a file; raises Corrupt naming what breaks the format."""
    try:
        content = json.loads(data)
        if not isinstance(content, dict):
            raise TypeError("the top is no object")
        if content.get("format") != FORMAT:
            raise UnsupportedFormat(
                f"{where}: format {content.get('format')!r:.40}, only {FORMAT} is known; "
                "open the store with a newer varve"
            )
        version = _whole(content["version"], 1, 2**63 - 1)
        entries = [_decode_entry(name, item, where) for name, item in content["topics"].items()]
        defaults = _decode_settings(content.get("defaults", {}), f"{where}, defaults")
    except StoreError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Corrupt(
            f"{where}: not a table of topics ({type(error).__name__}: {error!s:.80}); "
            "restore it, or remove it to open the topics with default settings"
        ) from error
    return TopicTable(version, {entry.name: entry for entry in entries}, defaults)


def _decode_entry(name: str, item: Any, where: str) -> TopicEntry:
    validate_topic_name(name)
    id = item["id"]
    settings = _decode_settings(item["settings"], f"{where}, topic {name}")
    return TopicEntry(
        name=name,
        id=None if id is None else decode_topic_id(str(id), f"{where}: topic {name}"),
        partition_count=_whole(item["partitions"], 1, PARTITION_MAX),
        settings=settings,
        state=TopicState(item["state"]),
    )


def _decode_settings(items: Any, where: str) -> dict[str, str]:
    settings = {str(key): str(value) for key, value in items.items()}
    parse_settings(LogSettings, settings, where)
    return settings


def _whole(value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"{value!r:.40} is no whole number from {low} to {high}")
    return value
