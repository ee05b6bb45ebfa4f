"""The configs of the broker: their values, where those come from, and changes at run time.

What changes at run time are the defaults of topics, by their broker-wide names, and configs that
have no meaning here. There is one broker, so its own configs and those of the whole cluster are the
same.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from varve.broker.admin.configs import (
    Changes,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    ConfigType,
    Synonym,
    TopicConfigs,
    apply_operations,
    make_entry,
    with_own,
)
from varve.broker.settings import FixedSettings, ReplicationSettings
from varve.broker.stored_configs import StoredConfigs
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

_DYNAMIC_CONFIGS: Final = {
    declaration.broker_name: declaration
    for declaration in declared(LogSettings)
    if declaration.broker_name
}
_NO_MEANING: Final = "Stored as Kafka stores it; it has no effect here."
_STORED_CONFIGS: Final = frozenset(
    {
        "background.threads",
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "log.cleaner.io.buffer.size",
        "metric.reporters",
        "num.io.threads",
        "num.network.threads",
        "num.replica.fetchers",
        "remote.fetch.max.wait.ms",
        "remote.list.offsets.request.timeout.ms",
        "remote.log.manager.copier.thread.pool.size",
        "remote.log.manager.expiration.thread.pool.size",
        "remote.log.manager.follower.thread.pool.size",
        "replica.alter.log.dirs.io.max.bytes.per.second",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
    }
)
"""Configs that a running broker of Kafka takes and that have no meaning here: they are stored and
described. Those of which an operator expects protection, such as ssl.cipher.suites, are refused."""


class BrokerConfigs:
    """Configs of the broker; `visible` are the settings that clients may see."""

    def __init__(
        self,
        store: Store,
        topics: TopicConfigs,
        visible: Sequence[Settings],
        stored: StoredConfigs,
    ) -> None:
        self._store = store
        self._topics = topics
        self._visible = visible
        self._stored = stored

    def entries(self) -> list[ConfigEntry]:
        """Every config, by name."""
        entries = {entry.name: entry for entry in self._static_entries()}
        for name, declaration in _DYNAMIC_CONFIGS.items():
            synonyms = self._topics.default_synonyms(declaration)
            entries[name] = make_entry(name, declaration, synonyms, is_read_only=False)
        for name, value in self._stored.broker.items():
            entry = ConfigEntry(name=name, config_type=ConfigType.STRING, documentation=_NO_MEANING)
            source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
            entries[name] = with_own(entry, value, source)
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

    def plan_replacement(self, configs: Mapping[str, str | None]) -> Changes:
        """The changes after which these configs, and no others, differ from the static ones."""
        altered = self._store.altered_defaults
        kept: Changes = {
            name: None
            for name, declaration in _DYNAMIC_CONFIGS.items()
            if declaration.kafka_name in altered
        }
        return {**kept, **dict.fromkeys(self._stored.broker), **configs}

    def plan_operations(self, changes: Iterable[ConfigChange]) -> Changes:
        """The changes that the operations result in."""
        current = {entry.name: entry.value or "" for entry in self.entries()}
        return apply_operations(changes, current, _DYNAMIC_CONFIGS)

    def check(self, changes: Changes) -> None:
        """Raises InvalidSetting unless the changes are valid together."""
        for name in changes:
            if name not in _DYNAMIC_CONFIGS and name not in _STORED_CONFIGS:
                raise InvalidSetting(self._explain_static(name))
        merged = {**self._store.altered_defaults, **_as_defaults(changes)}
        altered = {name: value for name, value in merged.items() if value is not None}
        static = self._store.settings.defaults
        parse_settings(LogSettings, altered, "the defaults of topics", base=static)

    def apply(self, changes: Changes) -> None:
        """Writes checked changes, those of topic defaults with immediate effect."""
        defaults = _as_defaults(changes)
        if defaults:
            self._store.alter_defaults(defaults)
        self._stored.alter_broker(
            {name: value for name, value in changes.items() if name in _STORED_CONFIGS}
        )

    def _explain_static(self, name: str) -> str:
        if any(entry.name == name for entry in self.entries()):
            return f"{name} is read when the broker starts: set it there"
        return (
            f"{name:.200} cannot be changed while the broker runs; these can: "
            f"{', '.join(sorted(_DYNAMIC_CONFIGS))}"
        )


def _as_defaults(changes: Changes) -> Changes:
    """The changes of topic defaults, by their topic config names."""
    return {
        _DYNAMIC_CONFIGS[name].kafka_name: value
        for name, value in changes.items()
        if name in _DYNAMIC_CONFIGS
    }


def _static_synonyms(settings: Settings, declaration: SettingDeclaration) -> Iterable[Synonym]:
    name, value = declaration.kafka_name, getattr(settings, declaration.name)
    if value != declaration.default:
        yield Synonym(name, format_value(value), ConfigSource.STATIC_BROKER_CONFIG)
    yield Synonym(name, declaration.default_text, ConfigSource.DEFAULT_CONFIG)
