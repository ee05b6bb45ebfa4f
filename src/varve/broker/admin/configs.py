"""The configs of topics: their values, where those come from, and changes.

A topic config comes from the topic itself, from a default set at run time, from the settings the
store was opened with, or is the built-in default.

Invariant  changes are checked as a whole before anything is written, and are in the topic table of
           every log directory before they apply. Sensitive values are never returned.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import IntEnum
from typing import Final

from varve.broker.settings import ReplicationSettings
from varve.commit_log import LogSettings
from varve.commit_log.settings import LAST_ERASURE
from varve.embedded import Store
from varve.foundation.errors import InvalidRequest, InvalidSetting
from varve.foundation.settings import (
    SettingDeclaration,
    SettingType,
    declared,
    format_value,
    parse_settings,
)
from varve.wire.messages import topics as messages
from varve.wire.messages.state_records import INTERNAL_TOPICS

_SECRET_PARTS: Final = frozenset({"password", "secret", "jaas", "credentials"})
_SECRET_NAMES: Final = frozenset({"ssl.keystore.key"})


class ResourceKind(IntEnum):
    """Resources with configs, by Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a value comes from, by Kafka's numbers."""

    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_GROUP_CONFIG = 8


class ConfigType(IntEnum):
    """The type of a value, by Kafka's numbers."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


_TYPES: Final = {
    SettingType.BOOLEAN: ConfigType.BOOLEAN,
    SettingType.INT: ConfigType.INT,
    SettingType.LONG: ConfigType.LONG,
    SettingType.DOUBLE: ConfigType.DOUBLE,
    SettingType.STRING: ConfigType.STRING,
    SettingType.LIST: ConfigType.LIST,
}


ConfigEntry = messages.DescribeConfigsResourceResult
"""A config as DescribeConfigs returns it; the first synonym is in effect."""
Synonym = messages.DescribeConfigsSynonym
"""A source of a value."""


def with_own(entry: ConfigEntry, value: str, source: ConfigSource) -> ConfigEntry:
    """The entry with a value that counts before the others."""
    return _with_synonyms(entry, [Synonym(entry.name, value, source), *entry.synonyms])


def make_entry(
    name: str,
    declaration: SettingDeclaration,
    synonyms: Iterable[Synonym],
    *,
    is_read_only: bool,
) -> ConfigEntry:
    """The entry of a declared setting."""
    is_sensitive = is_secret(name)
    entry = ConfigEntry(
        name=name,
        read_only=is_read_only,
        is_sensitive=is_sensitive,
        config_type=ConfigType.PASSWORD if is_sensitive else _TYPES[declaration.type],
        documentation=declaration.help,
    )
    if is_sensitive:
        synonyms = [Synonym(synonym.name, None, synonym.source) for synonym in synonyms]
    return _with_synonyms(entry, list(synonyms))


def _with_synonyms(entry: ConfigEntry, synonyms: list[Synonym]) -> ConfigEntry:
    effective = synonyms[0]
    return replace(entry, value=effective.value, config_source=effective.source, synonyms=synonyms)


def is_secret(name: str) -> bool:
    """Whether the value of a config must not be returned."""
    return name in _SECRET_NAMES or not _SECRET_PARTS.isdisjoint(name.split("."))


_REPLICATION_CONFIGS: Final = {
    declaration.kafka_name: declaration for declaration in declared(ReplicationSettings)
}
_TOPIC_CONFIGS: Final = {
    declaration.kafka_name: declaration for declaration in declared(LogSettings)
}

Changes = dict[str, str | None]
"""By name; None resets a config to its default."""


class ConfigOperation(IntEnum):
    """A change of a config, by Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


ConfigChange = messages.IncrementalAlterableConfig


class TopicConfigs:
    """Configs of the topics of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._defaults_for: Mapping[str, str] | None = None
        self._defaults: dict[str, ConfigEntry] = {}
        """Entries of a topic without configs of its own, as long as the defaults do not change."""

    def entries(self, own: Mapping[str, str]) -> list[ConfigEntry]:
        """Every config of a topic that has these of its own, by name."""
        altered = self._store.altered_defaults
        if self._defaults_for is not altered:
            self._defaults, self._defaults_for = self._default_entries(), altered
        entries = dict(self._defaults)
        for name, value in own.items():
            entries[name] = with_own(entries[name], value, ConfigSource.DYNAMIC_TOPIC_CONFIG)
        return list(entries.values())

    def _default_entries(self) -> dict[str, ConfigEntry]:
        entries = [
            make_entry(
                name,
                declaration,
                self.default_synonyms(declaration),
                is_read_only=name == LAST_ERASURE,
            )
            for name, declaration in _TOPIC_CONFIGS.items()
        ]
        entries += [
            make_entry(name, declaration, [_default_of(declaration)], is_read_only=True)
            for name, declaration in _REPLICATION_CONFIGS.items()
        ]
        return {entry.name: entry for entry in sorted(entries, key=lambda entry: entry.name)}

    def default_synonyms(self, declaration: SettingDeclaration) -> Iterable[Synonym]:
        """The sources of the value of a topic that has none of its own."""
        name = declaration.broker_name or declaration.kafka_name
        altered = self._store.altered_defaults.get(declaration.kafka_name)
        if altered is not None:
            yield Synonym(name, altered, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
        configured = getattr(self._store.settings.defaults, declaration.name)
        if configured != declaration.default:
            yield Synonym(name, format_value(configured), ConfigSource.STATIC_BROKER_CONFIG)
        yield _default_of(declaration)

    def check(self, topic: str, own: Mapping[str, str]) -> None:
        """Raises InvalidSetting unless a topic may have these configs."""
        parse_settings(LogSettings, own, f"topic {topic}", base=self._store.topic_defaults)

    def check_changes(self, topic: str, changes: Changes) -> None:
        """Raises InvalidSetting unless a topic may have the configs that result."""
        check_names(topic, changes)
        if LAST_ERASURE in changes:
            raise InvalidSetting(
                f"{LAST_ERASURE} of topic {topic} is set by erasures: leave it out of the change"
            )
        changed = {**self._store.given_settings(topic), **changes}
        own = {name: value for name, value in changed.items() if value is not None}
        self.check(topic, own)
        if topic in INTERNAL_TOPICS:
            _check_keeps_state(topic, own)

    def plan_replacement(self, topic: str, configs: Mapping[str, str | None]) -> Changes:
        """The changes after which a topic has these configs of its own and no others."""
        own = self._store.given_settings(topic)
        kept = without_replication(topic, configs)
        if kept.get(LAST_ERASURE) == own.get(LAST_ERASURE):
            kept.pop(LAST_ERASURE, None)
        return {**dict.fromkeys(name for name in own if name != LAST_ERASURE), **kept}

    def plan_operations(self, topic: str, changes: Iterable[ConfigChange]) -> Changes:
        """The changes that the operations result in."""
        own = self._store.given_settings(topic)
        current = {entry.name: entry.value or "" for entry in self.entries(own)}
        return without_replication(topic, apply_operations(changes, current, _TOPIC_CONFIGS))


def _check_keeps_state(topic: str, own: Mapping[str, str]) -> None:
    """Raises InvalidSetting where an internal topic would lose records, or not be read at start."""
    if own.get("cleanup.policy") != "compact":
        raise InvalidSetting(
            f"topic {topic} holds the state of groups or transactions and would lose it: "
            "leave cleanup.policy at compact"
        )
    for name in ("remote.storage.enable", "varve.dedup.by"):
        if own.get(name, _TOPIC_CONFIGS[name].default_text) != _TOPIC_CONFIGS[name].default_text:
            raise InvalidSetting(
                f"topic {topic} holds the state of groups or transactions, which the broker reads "
                f"when it starts: leave {name} at its default"
            )


def without_replication(topic: str, configs: Mapping[str, str | None]) -> Changes:
    """The configs without those of replication, which must hold for one replica.

    Raises InvalidSetting.
    """
    replication = {
        name: value
        for name, value in configs.items()
        if name in _REPLICATION_CONFIGS and value is not None
    }
    parse_settings(ReplicationSettings, replication, f"topic {topic}")
    return {name: value for name, value in configs.items() if name not in _REPLICATION_CONFIGS}


def check_names(topic: str, configs: Iterable[str]) -> None:
    """Raises InvalidSetting for an unknown name, with the most similar one."""
    for name in configs:
        if name not in _TOPIC_CONFIGS:
            parse_settings(LogSettings, {name: ""}, f"topic {topic}")


def check_no_nulls(configs: Mapping[str, str | None]) -> dict[str, str]:
    """Raises InvalidRequest where a value is null."""
    nulls = [name for name, value in configs.items() if value is None]
    if nulls:
        raise InvalidRequest(f"null is not a value of {', '.join(nulls):.200}; delete it instead")
    return {name: value for name, value in configs.items() if value is not None}


def apply_operations(
    changes: Iterable[ConfigChange],
    current: Mapping[str, str],
    declarations: Mapping[str, SettingDeclaration],
) -> Changes:
    """The values that operations result in; raises InvalidRequest, InvalidSetting."""
    results: Changes = {}
    for change in changes:
        if change.name in results:
            raise InvalidRequest(f"{change.name:.200} is changed twice; change it once")
        results[change.name] = _apply(change, current, declarations)
    return results


def _apply(
    change: ConfigChange, current: Mapping[str, str], declarations: Mapping[str, SettingDeclaration]
) -> str | None:
    name, value = change.name, change.value
    if change.config_operation == ConfigOperation.DELETE:
        return None
    if value is None:
        raise InvalidRequest(f"null is not a value of {name:.200}; delete it instead")
    if change.config_operation == ConfigOperation.SET:
        return value
    if change.config_operation not in (ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
        raise InvalidRequest(
            f"operation {change.config_operation} on {name:.200} is not known; use 0 set, "
            "1 delete, 2 append or 3 subtract"
        )
    if name in declarations and declarations[name].type is not SettingType.LIST:
        raise InvalidSetting(f"{name} is not a list: set it instead of appending or subtracting")
    items = [item for item in current.get(name, "").split(",") if item]
    operands = [item.strip() for item in value.split(",")]
    if change.config_operation == ConfigOperation.APPEND:
        return ",".join(dict.fromkeys([*items, *operands]))
    return ",".join(item for item in items if item not in operands)


def _default_of(declaration: SettingDeclaration) -> Synonym:
    name = declaration.broker_name or declaration.kafka_name
    return Synonym(name, declaration.default_text, ConfigSource.DEFAULT_CONFIG)
