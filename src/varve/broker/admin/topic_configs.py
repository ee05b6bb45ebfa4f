"""The settings of topics: what is told of them, and how changes of them are made out.

A value comes from the topic itself, from what all topics were given at run time, from what the
store was opened with, or is the default.

Invariant  changes are checked as a whole before anything is written.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from varve.broker.admin.config_entry import ConfigEntry, ConfigSource, Synonym, make_entry
from varve.broker.admin.settings import ReplicationSettings
from varve.commit_log import LogSettings
from varve.embedded import Store
from varve.foundation.errors import InvalidRequest, InvalidSetting
from varve.foundation.settings import (
    SettingDeclaration,
    SettingType,
    declared,
    format_value,
    parse_settings,
)

_OF_REPLICAS: Final = {one.kafka_name: one for one in declared(ReplicationSettings)}
_OF_LOGS: Final = {one.kafka_name: one for one in declared(LogSettings)}

Changes = dict[str, str | None]
"""By name; None takes a setting back to its default."""


class ConfigOperation(IntEnum):
    """What is done to a setting, by Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One of the changes that a request asks for."""

    name: str
    operation: int
    value: str | None


class TopicConfigs:
    """Settings of the topics of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known_for: Mapping[str, str] | None = None
        self._known: dict[str, ConfigEntry] = {}
        """What a topic has without settings of its own, as long as the defaults stay the same."""

    def entries(self, own: Mapping[str, str]) -> list[ConfigEntry]:
        """Every setting of a topic that was given these of its own, by name."""
        altered = self._store.altered_defaults
        if self._known_for is not altered:
            self._known, self._known_for = self._default_entries(), altered
        found = dict(self._known)
        for name, value in own.items():
            mine = Synonym(name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG)
            found[name] = replace(found[name], synonyms=(mine, *found[name].synonyms))
        return list(found.values())

    def _default_entries(self) -> dict[str, ConfigEntry]:
        found = [
            make_entry(name, one, tuple(self.default_synonyms(one)), is_read_only=False)
            for name, one in _OF_LOGS.items()
        ]
        found += [
            make_entry(name, one, (_default_of(one),), is_read_only=True)
            for name, one in _OF_REPLICAS.items()
        ]
        return {entry.name: entry for entry in sorted(found, key=lambda entry: entry.name)}

    def default_synonyms(self, one: SettingDeclaration) -> Iterable[Synonym]:
        """Where the value comes from of a topic that was given none of its own."""
        name = one.broker_name or one.kafka_name
        altered = self._store.altered_defaults.get(one.kafka_name)
        if altered is not None:
            yield Synonym(name, altered, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
        told = getattr(self._store.settings.defaults, one.name)
        if told != one.default:
            yield Synonym(name, format_value(told), ConfigSource.STATIC_BROKER_CONFIG)
        yield _default_of(one)

    def check(self, topic: str, own: Mapping[str, str]) -> None:
        """Raises InvalidSetting unless a topic may have these."""
        parse_settings(LogSettings, own, f"topic {topic}", base=self._store.topic_defaults)

    def merged(self, topic: str, changes: Changes) -> dict[str, str]:
        """What a topic would have of its own after the changes; raises InvalidSetting."""
        check_names(topic, changes)
        own = {**self._store.given_settings(topic), **changes}
        merged = {name: value for name, value in own.items() if value is not None}
        self.check(topic, merged)
        return merged

    def replacing(self, topic: str, configs: Mapping[str, str | None]) -> Changes:
        """The changes after which a topic has these of its own and no others."""
        kept = without_replication(topic, configs)
        return {**dict.fromkeys(self._store.given_settings(topic)), **kept}

    def applying(self, topic: str, changes: Iterable[ConfigChange]) -> Changes:
        """What the operations come to."""
        own = self._store.given_settings(topic)
        current = {entry.name: entry.value or "" for entry in self.entries(own)}
        return without_replication(topic, apply_operations(changes, current, _OF_LOGS))


def without_replication(topic: str, configs: Mapping[str, str | None]) -> Changes:
    """The settings without those of replicas, which must fit one replica; raises InvalidSetting."""
    given = {name: value for name, value in configs.items() if name in _OF_REPLICAS}
    told = {name: value for name, value in given.items() if value is not None}
    parse_settings(ReplicationSettings, told, f"topic {topic}")
    return {name: value for name, value in configs.items() if name not in given}


def check_names(topic: str, configs: Iterable[str]) -> None:
    """Raises InvalidSetting for a name that no topic has, telling the nearest."""
    for name in configs:
        if name not in _OF_LOGS:
            parse_settings(LogSettings, {name: ""}, f"topic {topic}")


def check_no_nulls(configs: Mapping[str, str | None]) -> dict[str, str]:
    """Raises InvalidRequest where a value is null."""
    nulls = [name for name, value in configs.items() if value is None]
    if nulls:
        raise InvalidRequest(f"null is no value of {', '.join(nulls):.200}; delete it instead")
    return {name: value for name, value in configs.items() if value is not None}


def apply_operations(
    changes: Iterable[ConfigChange],
    current: Mapping[str, str],
    known: Mapping[str, SettingDeclaration],
) -> Changes:
    """The values that operations lead to; raises InvalidRequest, InvalidSetting."""
    found: Changes = {}
    for change in changes:
        if change.name in found:
            raise InvalidRequest(f"{change.name:.200} is changed twice; change it once")
        found[change.name] = _apply(change, current, known)
    return found


def _apply(
    change: ConfigChange, current: Mapping[str, str], known: Mapping[str, SettingDeclaration]
) -> str | None:
    name, value = change.name, change.value
    if change.operation == ConfigOperation.DELETE:
        return None
    if value is None:
        raise InvalidRequest(f"null is no value of {name:.200}; delete it instead")
    if change.operation == ConfigOperation.SET:
        return value
    if change.operation not in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        raise InvalidRequest(
            f"operation {change.operation} on {name:.200} is not known; use 0 set, 1 delete, "
            "2 append or 3 subtract"
        )
    if name in known and known[name].type is not SettingType.LIST:
        raise InvalidSetting(f"{name} is no list, so nothing is added to it or taken away: set it")
    items = [item for item in current.get(name, "").split(",") if item]
    given = [item.strip() for item in value.split(",")]
    if change.operation == ConfigOperation.APPEND:
        return ",".join(dict.fromkeys([*items, *given]))
    return ",".join(item for item in items if item not in given)


def _default_of(one: SettingDeclaration) -> Synonym:
    name = one.broker_name or one.kafka_name
    return Synonym(name, one.default_text, ConfigSource.DEFAULT_CONFIG)
