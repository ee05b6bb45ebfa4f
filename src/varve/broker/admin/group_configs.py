"""The configs of single consumer groups: described with their source, checked and stored.

Invariant  a change of one group is checked as a whole before it is written, and counts from the
           next heartbeat of each member.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from varve.broker.admin.configs import (
    Changes,
    ConfigChange,
    ConfigEntry,
    ConfigSource,
    Synonym,
    apply_operations,
    make_entry,
    with_own,
)
from varve.broker.settings import ConsumerGroupConfigs, GroupSettings
from varve.broker.stored_configs import StoredConfigs
from varve.foundation.errors import InvalidRequest, InvalidSetting
from varve.foundation.settings import declared, format_value, parse_settings

_DECLARATIONS: Final = {
    declaration.kafka_name: declaration for declaration in declared(ConsumerGroupConfigs)
}
_BROKER_PREFIX: Final = "group."
_OTHER_KINDS: Final = ("share.", "streams.")
"""Prefixes of Kafka's configs of groups that are not served."""


class GroupConfigs:
    """Configs of groups; those without a value of their own have the broker's."""

    def __init__(self, settings: GroupSettings, stored: StoredConfigs) -> None:
        self._settings = settings
        self._stored = stored

    def entries(self, group_id: str) -> list[ConfigEntry]:
        """Every config of a group, by name."""
        own = self._stored.of_group(group_id)
        entries = [self._broker_entry(name) for name in sorted(_DECLARATIONS)]
        source = ConfigSource.DYNAMIC_GROUP_CONFIG
        return [
            with_own(entry, own[entry.name], source) if entry.name in own else entry
            for entry in entries
        ]

    def _broker_entry(self, name: str) -> ConfigEntry:
        declaration = _DECLARATIONS[name]
        value = getattr(self._settings, f"group_{declaration.name}")
        synonyms = [
            Synonym(
                f"{_BROKER_PREFIX}{name}", declaration.default_text, ConfigSource.DEFAULT_CONFIG
            )
        ]
        if value != declaration.default:
            synonyms[:0] = [
                Synonym(
                    f"{_BROKER_PREFIX}{name}",
                    format_value(value),
                    ConfigSource.STATIC_BROKER_CONFIG,
                )
            ]
        return make_entry(name, declaration, synonyms, is_read_only=False)

    @property
    def names(self) -> Sequence[str]:
        """The groups with configs of their own."""
        return sorted(self._stored.groups)

    def plan_replacement(self, group_id: str, configs: Mapping[str, str | None]) -> Changes:
        """The changes after which a group has these configs of its own and no others."""
        return {**dict.fromkeys(self._stored.of_group(group_id)), **configs}

    def plan_operations(self, group_id: str, changes: Sequence[ConfigChange]) -> Changes:
        """The changes that the operations result in."""
        return apply_operations(changes, self._stored.of_group(group_id), _DECLARATIONS)

    def check(self, group_id: str, changes: Changes) -> None:
        """Raises InvalidRequest or InvalidSetting unless the changes are valid together."""
        if not group_id:
            raise InvalidRequest("a group has no name; name the group that is to be altered")
        for name in changes:
            _check_name(group_id, name)
        merged = {**self._stored.of_group(group_id), **changes}
        own = {name: value for name, value in merged.items() if value is not None}
        parsed = parse_settings(ConsumerGroupConfigs, own, f"group {group_id:.260}")
        for field, (low, high) in self._settings.consumer_config_bounds.items():
            name, value = _name_of(field), getattr(parsed, field)
            if name in changes and name in own and not low <= value <= high:
                raise InvalidSetting(
                    f"{name} is {value}, but must be {low} to {high}: see "
                    f"{_bound_name(name, 'min')} and {_bound_name(name, 'max')} of the broker"
                )
        effective = ConsumerGroupConfigs.of_group(self._settings, own)
        interval_ms = effective.consumer_heartbeat_interval_ms
        if interval_ms >= effective.consumer_session_timeout_ms:
            raise InvalidSetting(
                f"consumer.heartbeat.interval.ms of group {group_id:.260} would be {interval_ms}; "
                "it must be less than consumer.session.timeout.ms, "
                f"{effective.consumer_session_timeout_ms}"
            )

    def apply(self, group_id: str, changes: Changes) -> None:
        """Writes checked changes."""
        self._stored.alter_group(group_id, changes)


def _name_of(field: str) -> str:
    return field.replace("_", ".")


def _bound_name(name: str, end: str) -> str:
    """`consumer.session.timeout.ms` has the bound `group.consumer.min.session.timeout.ms`."""
    return name.replace("consumer.", f"{_BROKER_PREFIX}consumer.{end}.")


def _check_name(group_id: str, name: str) -> None:
    if name.startswith(_OTHER_KINDS):
        raise InvalidSetting(
            f"{name:.200} is for share groups or streams groups, which are not served: a consumer "
            f"group has {', '.join(sorted(_DECLARATIONS))}"
        )
    if name not in _DECLARATIONS:
        parse_settings(ConsumerGroupConfigs, {name: ""}, f"group {group_id:.260}")
