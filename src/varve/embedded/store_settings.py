"""Reads the settings of a whole store: its own, and the defaults of its topics.

A topic's default goes by Kafka's broker-wide name, e.g. `log.segment.bytes` for `segment.bytes`.
"""

import difflib
from collections.abc import Mapping

from varve.commit_log import LogSettings, StoreSettings
from varve.foundation.errors import InvalidSetting
from varve.foundation.settings import GivenValue, declared, parse_settings


def parse_store_settings(given: Mapping[str, GivenValue]) -> tuple[StoreSettings, LogSettings]:
    """The store's settings and its topics' defaults; raises InvalidSetting for any other name."""
    own = {one.kafka_name for one in declared(StoreSettings)}
    defaults = {one.broker_name or one.kafka_name: one.kafka_name for one in declared(LogSettings)}
    for name in given:
        if name not in own and name not in defaults:
            raise InvalidSetting(_unknown(name, own, defaults))
    return (
        parse_settings(
            StoreSettings,
            {name: value for name, value in given.items() if name in own},
            "the store's settings",
        ),
        parse_settings(
            LogSettings,
            {defaults[name]: value for name, value in given.items() if name in defaults},
            "the store's settings",
        ),
    )


def _unknown(name: str, own: set[str], defaults: Mapping[str, str]) -> str:
    for broker_name, topic_name in defaults.items():
        if name == topic_name:
            return (
                f"{name} in the store's settings is a setting of one topic: give it when the topic "
                f"is created, or set {broker_name} for all topics"
            )
    nearest = difflib.get_close_matches(name, [*own, *defaults], n=1, cutoff=0.5)
    remedy = f"did you mean {nearest[0]!r}?" if nearest else "docs/configuration.md lists all"
    return f"unknown setting {name!r:.120} in the store's settings: {remedy}"
