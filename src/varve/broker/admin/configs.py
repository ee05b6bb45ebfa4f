"""The configs of topics and of the broker: their values, where those come from, and changes.

A topic config comes from the topic itself, from a default set at run time, from the settings the
store was opened with, or is the built-in default. What changes at run time on the broker are the
defaults of topics, by their broker-wide names. There is one broker, so its own configs and those of
the whole cluster are the same.

Invariant  changes are checked as a whole before anything is written, and are in the topic table of
           every log directory before they apply. Sensitive values are never returned.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Final

from varve.broker.settings import FixedSettings, ReplicationSettings
from varve.commit_log import LogSettings
from varve.embedded import Store
from varve.foundation.errors import InvalidRequest, InvalidSetting
from varve.foundation.settings import (
    SettingDeclaration,
    Settings,
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
            synonym = Synonym(name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG)
            entries[name] = _with_synonyms(entries[name], [synonym, *entries[name].synonyms])
        return list(entries.values())

    def _default_entries(self) -> dict[str, ConfigEntry]:
        entries = [
            make_entry(name, declaration, self.default_synonyms(declaration), is_read_only=False)
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
        changed = {**self._store.given_settings(topic), **changes}
        own = {name: value for name, value in changed.items() if value is not None}
        self.check(topic, own)
        if topic in INTERNAL_TOPICS and own.get("cleanup.policy") != "compact":
            raise InvalidSetting(
                f"topic {topic} holds the state of groups or transactions and would lose it: "
                "leave cleanup.policy at compact"
            )

    def plan_replacement(self, topic: str, configs: Mapping[str, str | None]) -> Changes:
        """The changes after which a topic has these configs of its own and no others."""
        kept = without_replication(topic, configs)
        return {**dict.fromkeys(self._store.given_settings(topic)), **kept}

    def plan_operations(self, topic: str, changes: Iterable[ConfigChange]) -> Changes:
        """The changes that the operations result in."""
        own = self._store.given_settings(topic)
        current = {entry.name: entry.value or "" for entry in self.entries(own)}
        return without_replication(topic, apply_operations(changes, current, _TOPIC_CONFIGS))


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


_DYNAMIC_CONFIGS: Final = {
    declaration.broker_name: declaration
    for declaration in declared(LogSettings)
    if declaration.broker_name
}
_GROUP_CONFIGS: Final = ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms")
_GROUP_PREFIX: Final = "group."


class BrokerConfigs:
    """Configs of the broker; `visible` are the settings that clients may see."""

    def __init__(self, store: Store, topics: TopicConfigs, visible: Sequence[Settings]) -> None:
        self._store = store
        self._topics = topics
        self._visible = visible

    def entries(self) -> list[ConfigEntry]:
        """Every config, by name."""
        entries = {entry.name: entry for entry in self._static_entries()}
        for name, declaration in _DYNAMIC_CONFIGS.items():
            synonyms = self._topics.default_synonyms(declaration)
            entries[name] = make_entry(name, declaration, synonyms, is_read_only=False)
        return [entries[name] for name in sorted(entries)]

    def _static_entries(self) -> Iterable[ConfigEntry]:
        store = self._store.settings
        own: list[Settings] = [store.store, store.cleaner, store.tier, store.metadata]
        for settings in (*own, ReplicationSettings(), FixedSettings(), *self._visible):
            for declaration in declared(settings):
                synonyms = _static_synonyms(settings, declaration)
                yield make_entry(declaration.kafka_name, declaration, synonyms, is_read_only=True)

    def altered_entries(self) -> list[ConfigEntry]:
        """Those that were changed at run time, for the whole cluster."""
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        return [entry for entry in self.entries() if entry.config_source == source]

    def group_entries(self) -> list[ConfigEntry]:
        """The configs of every group: none has its own."""
        entries = []
        for settings in self._visible:
            for declaration in declared(settings):
                name = declaration.kafka_name.removeprefix(_GROUP_PREFIX)
                if declaration.kafka_name.startswith(_GROUP_PREFIX) and name in _GROUP_CONFIGS:
                    synonyms = _static_synonyms(settings, declaration)
                    entries.append(make_entry(name, declaration, synonyms, is_read_only=True))
        return entries

    def plan_replacement(self, configs: Mapping[str, str | None]) -> Changes:
        """The changes after which these configs, and no others, differ from the static ones."""
        altered = self._store.altered_defaults
        kept: Changes = {
            name: None
            for name, declaration in _DYNAMIC_CONFIGS.items()
            if declaration.kafka_name in altered
        }
        return {**kept, **configs}

    def plan_operations(self, changes: Iterable[ConfigChange]) -> Changes:
        """The changes that the operations result in."""
        current = {entry.name: entry.value or "" for entry in self.entries()}
        return apply_operations(changes, current, _DYNAMIC_CONFIGS)

    def as_defaults(self, changes: Changes) -> Changes:
        """The changes by their topic config names; raises InvalidSetting."""
        for name in changes:
            if name not in _DYNAMIC_CONFIGS:
                raise InvalidSetting(self._explain_static(name))
        renamed = {_DYNAMIC_CONFIGS[name].kafka_name: value for name, value in changes.items()}
        merged = {**self._store.altered_defaults, **renamed}
        altered = {name: value for name, value in merged.items() if value is not None}
        static = self._store.settings.defaults
        parse_settings(LogSettings, altered, "the defaults of topics", base=static)
        return renamed

    def _explain_static(self, name: str) -> str:
        if any(entry.name == name for entry in self.entries()):
            return f"{name} is read when the broker starts: set it there"
        return (
            f"{name:.200} cannot be changed while the broker runs; these can: "
            f"{', '.join(sorted(_DYNAMIC_CONFIGS))}"
        )


def _static_synonyms(settings: Settings, declaration: SettingDeclaration) -> Iterable[Synonym]:
    name, value = declaration.kafka_name, getattr(settings, declaration.name)
    if value != declaration.default:
        yield Synonym(name, format_value(value), ConfigSource.STATIC_BROKER_CONFIG)
    yield Synonym(name, declaration.default_text, ConfigSource.DEFAULT_CONFIG)
