"""Reads the settings of a whole store: its own, and the defaults of its topics.

A topic's default has Kafka's broker-wide name, e.g. `log.segment.bytes` for `segment.bytes`.
Settings of the tier's object store begin with `varve.tier.store.`, those of the store that
mirrors it with `varve.tier.mirror.store.`.
"""

import difflib
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

from varve.cleaning.settings import CleanerSettings
from varve.commit_log import LogSettings, StoreSettings
from varve.foundation.errors import InvalidSetting
from varve.foundation.settings import (
    GivenValue,
    Settings,
    check_mapping,
    declared,
    expand_units,
    parse_settings,
)
from varve.tiering.settings import MetadataSettings, TierSettings

S = TypeVar("S", bound=Settings)
T = TypeVar("T")

_WHERE: Final = "the store's settings"

TIER_STORE_PREFIX: Final = "varve.tier.store."
"""Prefix of settings of the tier's object store."""
MIRROR_STORE_PREFIX: Final = "varve.tier.mirror.store."
"""Prefix of settings of the store that mirrors it."""


_MIRROR: Final = "mirror."
"""Prefix of settings of the mirror where both are given as settings of one object store."""


def split_store_settings(settings: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T]]:
    """Settings of the object store, and those of its mirror, which start with `mirror.`"""
    mirror = {name: value for name, value in settings.items() if name.startswith(_MIRROR)}
    first = {name: value for name, value in settings.items() if name not in mirror}
    return first, {name.removeprefix(_MIRROR): value for name, value in mirror.items()}


class ParsedSettings(NamedTuple):
    """The settings of a store by the component that reads them."""

    store: StoreSettings
    cleaner: CleanerSettings
    tier: TierSettings
    metadata: MetadataSettings
    tier_store: Mapping[str, GivenValue]
    """Settings of the tier's object store, by its own names."""
    mirror_store: Mapping[str, GivenValue]
    """Settings of the store that mirrors it."""
    defaults: LogSettings
    foreign: Mapping[str, str]
    """Settings of topics without an entry in the topic table, such as those that Kafka wrote."""


def parse_store_settings(given: Mapping[str, GivenValue]) -> ParsedSettings:
    """The store's settings and its topics' defaults; raises InvalidSetting for any other name."""
    check_mapping(given, _WHERE)
    prefixes = (TIER_STORE_PREFIX, MIRROR_STORE_PREFIX)
    tier_store, mirror_store = (_with_prefix(prefix, given) for prefix in prefixes)
    given = {name: value for name, value in given.items() if not name.startswith(prefixes)}
    given = expand_units(given, _WHERE)
    own = set().union(
        *map(_names, (StoreSettings, CleanerSettings, TierSettings, MetadataSettings))
    )
    defaults = {
        declaration.broker_name or declaration.kafka_name: declaration.kafka_name
        for declaration in declared(LogSettings)
    }
    for name in given:
        if name not in own and name not in defaults:
            raise InvalidSetting(_unknown(name, own, defaults))
    topic_defaults = {name: value for name, value in given.items() if name in defaults}
    return ParsedSettings(
        _parse_part(StoreSettings, given),
        _parse_part(CleanerSettings, given),
        _parse_part(TierSettings, given),
        _parse_part(MetadataSettings, given),
        tier_store,
        mirror_store,
        parse_settings(LogSettings, topic_defaults, _WHERE, by_broker_name=True),
        # Opening the directory of another program must not delete records by a default retention.
        {} if "log.retention.ms" in topic_defaults else {"retention.ms": "-1"},
    )


def _with_prefix(prefix: str, values: Mapping[str, GivenValue]) -> dict[str, GivenValue]:
    return {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix)
    }


def _names(settings: type[Settings]) -> set[str]:
    return {declaration.kafka_name for declaration in declared(settings)}


def _parse_part(settings: type[S], given: Mapping[str, GivenValue]) -> S:
    names = _names(settings)
    part = {name: value for name, value in given.items() if name in names}
    return parse_settings(settings, part, _WHERE)


def _unknown(name: str, own: set[str], defaults: Mapping[str, str]) -> str:
    for broker_name, topic_name in defaults.items():
        if name == topic_name:
            return (
                f"{name} in the store's settings is a setting of one topic: set it when you create "
                f"the topic, or set {broker_name} for all topics"
            )
    nearest = difflib.get_close_matches(name, [*own, *defaults], n=1, cutoff=0.5)
    remedy = (
        f"did you mean {nearest[0]!r}?" if nearest else "docs/reference/configuration.md lists all"
    )
    return f"unknown setting {name!r:.120} in the store's settings: {remedy}"
