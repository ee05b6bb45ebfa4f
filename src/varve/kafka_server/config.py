"""The configuration of a server, merged from a properties file, the environment and options.

Invariant  the later source wins: file, environment, options. An unknown name is an error; one that
           only Kafka knows is named in a warning and otherwise ignored.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Final

from varve.broker.settings import (
    BrokerSettings,
    GroupSettings,
    QuotaSettings,
    SecuritySettings,
    TransactionSettings,
)
from varve.cleaning.settings import CleanerSettings
from varve.commit_log import LogSettings, StoreSettings
from varve.embedded.store_settings import MIRROR_STORE_PREFIX, TIER_STORE_PREFIX
from varve.foundation.errors import InvalidSetting
from varve.foundation.properties import parse_properties
from varve.foundation.settings import (
    Settings,
    SettingText,
    declared,
    expand_unit,
    find_source,
    parse_settings,
)
from varve.kafka_server.settings import ServerSettings, TlsSettings
from varve.tiering.settings import MetadataSettings, TierSettings

ENVIRONMENT_PREFIX: Final = "VARVE_"
_OWN_PREFIX: Final = "varve."
_LISTENER_PREFIX: Final = "listener.name."
_STORE_PREFIXES: Final = (MIRROR_STORE_PREFIX, TIER_STORE_PREFIX)
_COMMAND_VARIABLES: Final = frozenset(
    {
        "VARVE_BOOTSTRAP",
        "VARVE_CATALOG_SETTINGS",
        "VARVE_COMMAND_CONFIG",
        "VARVE_DIR",
        "VARVE_SHAPE_ADMIN_TOKEN",
        "VARVE_SHAPE_TOKEN",
        "VARVE_SHAPE_URL",
        "VARVE_SIGN_PASSPHRASE",
        "VARVE_SPARK_MASTER",
        "VARVE_SPARK_PACKAGE",
        "VARVE_TIER_SETTINGS",
        "VARVE_USER_PASSWORD",
    }
)
"""Variables of commands other than the server."""

_BROKER_PARTS: Final[dict[str, type[Settings]]] = {
    "settings": BrokerSettings,
    "security": SecuritySettings,
    "quotas": QuotaSettings,
    "groups": GroupSettings,
    "transactions": TransactionSettings,
}
"""By the parameters of Broker."""
_STORE_PARTS: Final[tuple[type[Settings], ...]] = (
    StoreSettings,
    CleanerSettings,
    TierSettings,
    MetadataSettings,
)
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_OTHER_UNITS: Final = {
    "log.retention.minutes": ("log.retention.ms", _MINUTE_MS),
    "log.retention.hours": ("log.retention.ms", _HOUR_MS),
    "log.roll.hours": ("log.roll.ms", _HOUR_MS),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", _HOUR_MS),
}
"""Kafka's names for a setting in other units; the setting itself wins, then the first of them."""
_SERVER_DEFAULTS: Final = {"log.message.timestamp.after.max.ms": str(_HOUR_MS)}
"""Kafka's defaults where an embedded store has another.

docs/explanation/decisions/0010-the-server.md
"""
_RENAMED: Final = {"broker.id": "node.id", "log.dir": "log.dirs"}
_WHERE: Final = "the server's settings"
_DIRECTORIES: Final = "log.dirs"
_AUTHORIZER: Final = "authorizer.class.name"
_CONTROLLERS: Final = "controller.listener.names"


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The settings of all parts of a server."""

    directories: tuple[str, ...]
    store: dict[str, str]
    broker: dict[str, Any]
    """By the parameters of Broker."""
    server: ServerSettings
    tls: TlsSettings
    listener_settings: dict[str, str]
    """Settings of single listeners, by their full names."""
    warnings: list[str] = field(default_factory=list)


def read_properties_file(path: Path) -> dict[str, str]:
    """Settings as in Kafka's server.properties; raises InvalidSetting."""
    try:
        properties = parse_properties(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InvalidSetting(f"{path} is not UTF-8 text: {error.reason}") from error
    except ValueError as error:
        raise InvalidSetting(f"{path}, {error}") from error
    settings: dict[str, str] = {}
    for number, name, value in properties:
        if not name:
            raise InvalidSetting(f"{path}, line {number}: a value without a name; write name=value")
        if name in settings:
            raise InvalidSetting(f"{path}, line {number}: {name} is set twice; delete one line")
        settings[name] = SettingText(value.rstrip(), f"{path}, line {number}")
    return settings


def read_environment(variables: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Settings by Kafka's names, and a warning for each variable that is not a setting.

    Raises InvalidSetting for an empty authorizer: it must not switch authorization off.
    """
    names = {variable_of(name): name for name in (*_known_names(), _DIRECTORIES)}
    settings: dict[str, str] = {}
    warnings: list[str] = []
    for variable, value in variables.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in _COMMAND_VARIABLES:
            continue
        name = names.get(variable) or _object_store_setting(variable)
        if name is None:
            nearest = difflib.get_close_matches(variable, names, n=1, cutoff=0.6)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            warnings.append(f"{variable} in the environment is not a setting{hint}")
        elif name == _AUTHORIZER and not value:
            raise InvalidSetting(f"{variable} is empty: give it a value, or unset it")
        else:
            settings[name] = SettingText(value, f"the variable {variable}")
    return settings, warnings


def variable_of(name: str) -> str:
    """`listeners` is VARVE_LISTENERS, `varve.tier.url` is VARVE_TIER_URL."""
    own_name = name.removeprefix(_OWN_PREFIX)
    return ENVIRONMENT_PREFIX + own_name.replace(".", "_").replace("-", "_").upper()


def _object_store_setting(variable: str) -> str | None:
    """A setting of the tier's object store, whose names are that store's own."""
    for prefix in _STORE_PREFIXES:
        start = variable_of(prefix)
        if variable.startswith(start):
            return prefix + variable.removeprefix(start).lower().replace("_", ".")
    return None


def make_config(
    settings: Mapping[str, str], directories: Sequence[str], *, default_directory: str
) -> ServerConfig:
    """Sorts settings by the part that they belong to; raises InvalidSetting."""
    translated, warnings = _translate(settings)
    paths = tuple(directories) or _split_list(translated.get(_DIRECTORIES, ""))
    translated.pop(_DIRECTORIES, None)
    warnings += _drop_controllers(translated)
    store_names = set(_store_names())
    store = dict(_SERVER_DEFAULTS)
    listener_settings: dict[str, str] = {}
    other: dict[str, str] = {}
    for name, value in translated.items():
        if name in store_names or name.startswith(_STORE_PREFIXES):
            store[name] = value
        elif name.startswith(_LISTENER_PREFIX):
            listener_settings[name] = value
        else:
            other[name] = value
    if other.get("varve.authorizer.enable") == "true" and not other.get("super.users"):
        warnings.append(
            "varve.authorizer.enable=true without super.users: everything is denied except what "
            "existing ACLs allow, and no client can add ACLs; set super.users=User:NAME"
        )
    warnings += _drop_unsupported(other)
    return ServerConfig(
        paths or (default_directory,),
        store,
        {part: _parse_part(kind, other) for part, kind in _BROKER_PARTS.items()},
        _parse_part(ServerSettings, other),
        _parse_part(TlsSettings, other),
        listener_settings,
        warnings,
    )


def _translate(configured: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Replaces Kafka's other names of a setting by the one that varve has."""
    settings = {name: expand_unit(name, text, _WHERE) for name, text in configured.items()}
    warnings = []
    for other, name in _RENAMED.items():
        if other in settings:
            settings.setdefault(name, settings.pop(other))
            settings.pop(other, None)
    for other, (name, unit_ms) in _OTHER_UNITS.items():
        text = settings.pop(other, None)
        if text is None:
            continue
        if name in settings:
            warnings.append(f"{other} is ignored, as {name} is set too")
            continue
        try:
            count = int(text)
        except ValueError:
            source = find_source(text) or _WHERE
            raise InvalidSetting(
                f"{other} in {source} is {text!r:.80}, but must be a whole number"
            ) from None
        settings[name] = str(count if count < 0 else count * unit_ms)
    return settings, warnings


def _drop_controllers(settings: dict[str, str]) -> list[str]:
    """Removes the listeners for controllers that a combined node of Kafka has."""
    controllers = {name.upper() for name in _split_list(settings.get(_CONTROLLERS, ""))}
    warnings = []
    for name in ("listeners", "advertised.listeners"):
        kept = []
        for listener in _split_list(settings.get(name, "")):
            if listener.partition("://")[0].upper() in controllers:
                warnings.append(f"{listener} in {name} is for controllers, which varve has none of")
            else:
                kept.append(listener)
        if name in settings:
            settings[name] = ",".join(kept)
    return warnings


def _drop_unsupported(settings: dict[str, str]) -> list[str]:
    """Removes the settings that only Kafka has; raises InvalidSetting for unknown ones."""
    supported = set(_server_names())
    unknown = [name for name in settings if name not in supported]
    if not unknown:
        return []
    kafka_names = frozenset(_kafka_names())
    for name in unknown:
        if name not in kafka_names:
            source = find_source(settings[name])
            raise InvalidSetting(_unknown_setting(name, kafka_names, source))
        del settings[name]
    return [f"settings of Kafka without a meaning here are ignored: {', '.join(sorted(unknown))}"]


def _unknown_setting(name: str, kafka_names: Iterable[str], source: str) -> str:
    named = f"{name!r:.120}{f' in {source}' if source else ''}"
    for declaration in declared(LogSettings):
        if name == declaration.kafka_name and declaration.broker_name:
            return (
                f"{named} is a setting of one topic: set {declaration.broker_name} for all "
                "topics, or alter the topic"
            )
    known = [*_known_names(), *kafka_names]
    # The default of a topic's setting begins with log: retention.ms is log.retention.ms.
    near = [
        (difflib.SequenceMatcher(None, written, found).ratio(), found)
        for written in (name[:120], f"log.{name[:120]}")
        for found in difflib.get_close_matches(written, known, n=1, cutoff=0.5)
    ]
    remedy = (
        f"did you mean {max(near)[1]!r}?" if near else "docs/reference/configuration.md lists all"
    )
    return f"unknown setting {named}: {remedy}"


def _parse_part(kind: type[Settings], settings: Mapping[str, str]) -> Any:
    names = {declaration.kafka_name for declaration in declared(kind)}
    part = {name: value for name, value in settings.items() if name in names}
    return parse_settings(kind, part, _WHERE)


def _kafka_names() -> Iterator[str]:
    """The settings of Kafka's brokers, to distinguish an unsupported name from a misspelt one."""
    text = resources.files(__package__).joinpath("kafka_settings.txt").read_text(encoding="utf-8")
    return (line for line in text.splitlines() if not line.startswith("#"))


def _known_names() -> Iterator[str]:
    yield from _store_names()
    yield from _server_names()


def _store_names() -> Iterator[str]:
    for kind in _STORE_PARTS:
        yield from (declaration.kafka_name for declaration in declared(kind))
    yield from (
        declaration.broker_name or declaration.kafka_name for declaration in declared(LogSettings)
    )


def _server_names() -> Iterator[str]:
    for kind in (*_BROKER_PARTS.values(), ServerSettings, TlsSettings):
        yield from (declaration.kafka_name for declaration in declared(kind))


def _split_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
