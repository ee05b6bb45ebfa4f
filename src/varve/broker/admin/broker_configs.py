"""The settings of the broker: those it was started with, and those that change while it runs.

What changes at run time are the defaults of topics, by their broker-wide names. There is one
broker, so its own settings and those of the whole cluster are the same.

Invariant  a change is in the table of topics, in every log directory, before it holds.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from varve.broker.admin.config_entry import ConfigEntry, ConfigSource, Synonym, make_entry
from varve.broker.admin.settings import FixedSettings, ReplicationSettings
from varve.broker.admin.topic_configs import (
    Changes,
    ConfigChange,
    TopicConfigs,
    apply_operations,
)
from varve.commit_log import LogSettings
from varve.embedded import Store
from varve.foundation.errors import InvalidSetting
from varve.foundation.settings import (
    SettingDeclaration,
    Settings,
    declared,
    format_value,
    parse_settings,
)

_DYNAMIC: Final = {one.broker_name: one for one in declared(LogSettings) if one.broker_name}
_GROUP_NAMES: Final = ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms")
_OF_BROKER: Final = "group."


class BrokerConfigs:
    """`told` are the settings that the broker's parts were made with."""

    def __init__(self, store: Store, topics: TopicConfigs, told: Sequence[Settings]) -> None:
        self._store = store
        self._topics = topics
        self._told = told

    def entries(self) -> list[ConfigEntry]:
        """Every setting, by name."""
        found = {one.name: one for one in self._static_entries()}
        for name, one in _DYNAMIC.items():
            synonyms = tuple(self._topics.default_synonyms(one))
            found[name] = make_entry(name, one, synonyms, is_read_only=False)
        return [found[name] for name in sorted(found)]

    def _static_entries(self) -> Iterable[ConfigEntry]:
        store = self._store.settings
        own: list[Settings] = [store.store, store.cleaner, store.tier, store.metadata]
        for settings in (*own, ReplicationSettings(), FixedSettings(), *self._told):
            for one in declared(settings):
                synonyms = tuple(_static_synonyms(settings, one, one.kafka_name))
                yield make_entry(one.kafka_name, one, synonyms, is_read_only=True)

    def altered_entries(self) -> list[ConfigEntry]:
        """Those that were changed at run time, for the whole cluster."""
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
        return [one for one in self.entries() if one.source is source]

    def group_entries(self) -> list[ConfigEntry]:
        """What holds for every group: none has settings of its own."""
        found = []
        for settings in self._told:
            for one in declared(settings):
                name = one.kafka_name.removeprefix(_OF_BROKER)
                if one.kafka_name.startswith(_OF_BROKER) and name in _GROUP_NAMES:
                    synonyms = tuple(_static_synonyms(settings, one, one.kafka_name))
                    found.append(make_entry(name, one, synonyms, is_read_only=True))
        return found

    def replacing(self, configs: Mapping[str, str | None]) -> Changes:
        """The changes after which these, and no others, differ from the start."""
        altered = self._store.altered_defaults
        kept: Changes = {name: None for name, one in _DYNAMIC.items() if one.kafka_name in altered}
        return {**kept, **configs}

    def applying(self, changes: Iterable[ConfigChange]) -> Changes:
        """What the operations come to."""
        current = {one.name: one.value or "" for one in self.entries()}
        return apply_operations(changes, current, _DYNAMIC)

    def as_defaults(self, changes: Changes) -> Changes:
        """The changes by the names that topics use; raises InvalidSetting."""
        for name in changes:
            if name not in _DYNAMIC:
                raise InvalidSetting(self._refusal(name))
        renamed = {_DYNAMIC[name].kafka_name: value for name, value in changes.items()}
        merged = {**self._store.altered_defaults, **renamed}
        given = {name: value for name, value in merged.items() if value is not None}
        told = self._store.settings.defaults
        parse_settings(LogSettings, given, "the defaults of topics", base=told)
        return renamed

    def _refusal(self, name: str) -> str:
        if any(one.name == name for one in self.entries()):
            return f"{name} is read when the broker starts: set it there"
        return (
            f"{name:.200} is no setting that changes while the broker runs; these do: "
            f"{', '.join(sorted(_DYNAMIC))}"
        )


def _static_synonyms(settings: Settings, one: SettingDeclaration, name: str) -> Iterable[Synonym]:
    value = getattr(settings, one.name)
    if value != one.default:
        yield Synonym(name, format_value(value), ConfigSource.STATIC_BROKER_CONFIG)
    yield Synonym(name, one.default_text, ConfigSource.DEFAULT_CONFIG)
