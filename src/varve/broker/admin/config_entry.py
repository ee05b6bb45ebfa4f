"""One setting as DescribeConfigs tells it: its value, where that comes from, its type and help.

Invariant  what may be secret has no value here, whoever asks.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from varve.foundation.settings import SettingDeclaration, SettingType

_SECRET_PARTS: Final = frozenset({"password", "secret", "jaas", "credentials"})
_SECRET_NAMES: Final = frozenset({"ssl.keystore.key"})


class ResourceKind(IntEnum):
    """What has settings, by Kafka's numbers."""

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


@dataclass(frozen=True, slots=True)
class Synonym:
    """A place that could give the value; the first one that there is does."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting and the places that its value could come from, the one that counts first."""

    name: str
    type: ConfigType
    help: str
    synonyms: tuple[Synonym, ...]
    is_read_only: bool
    is_sensitive: bool

    @property
    def value(self) -> str | None:
        return self.synonyms[0].value

    @property
    def source(self) -> ConfigSource:
        return self.synonyms[0].source


def make_entry(
    name: str,
    declaration: SettingDeclaration,
    synonyms: tuple[Synonym, ...],
    *,
    is_read_only: bool,
) -> ConfigEntry:
    """An entry of a declared setting."""
    is_sensitive = is_secret(name)
    if is_sensitive:
        synonyms = tuple(Synonym(one.name, None, one.source) for one in synonyms)
    return ConfigEntry(
        name,
        ConfigType.PASSWORD if is_sensitive else _TYPES[declaration.type],
        declaration.help,
        synonyms,
        is_read_only,
        is_sensitive,
    )


def is_secret(name: str) -> bool:
    """Whether the value of a setting is nobody's business."""
    return name in _SECRET_NAMES or not _SECRET_PARTS.isdisjoint(name.split("."))
