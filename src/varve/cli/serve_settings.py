"""What `varve serve` is told, from a file, the environment and its own options.

Invariant  what comes later counts: file, environment, options. A name that nobody knows is an
           error; one that only Kafka knows is named in a warning and otherwise ignored.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from varve.broker.settings import (
    AdminSettings,
    BrokerSettings,
    DataSettings,
    GroupSettings,
    QuotaSettings,
    SecuritySettings,
    TransactionSettings,
)
from varve.cleaning.settings import CleanerSettings
from varve.cli.serve_kafka_names import KAFKA_NAMES
from varve.commit_log import LogSettings, StoreSettings
from varve.embedded.store_settings import MIRROR_STORE_PREFIX, TIER_STORE_PREFIX
from varve.foundation.errors import InvalidSetting
from varve.foundation.settings import Settings, declared, parse_settings
from varve.kafka_server.settings import ServerSettings, TlsSettings
from varve.tiering.settings import MetadataSettings, TierSettings

ENVIRONMENT_PREFIX: Final = "VARVE_"
_OWN_PREFIX: Final = "varve."
_LISTENER_PREFIX: Final = "listener.name."
_STORE_PREFIXES: Final = (MIRROR_STORE_PREFIX, TIER_STORE_PREFIX)
_OF_COMMANDS: Final = frozenset(
    {
        "VARVE_BROKER",
        "VARVE_CATALOG_SETTINGS",
        "VARVE_CLIENT_CONFIG",
        "VARVE_DIR",
        "VARVE_SHAPE_ADMIN_TOKEN",
        "VARVE_SHAPE_TOKEN",
        "VARVE_SHAPE_URL",
        "VARVE_SIGN_PASSPHRASE",
        "VARVE_SPARK_MASTER",
        "VARVE_SPARK_SHIP",
        "VARVE_TIER_SETTINGS",
        "VARVE_USER_PASSWORD",
    }
)
"""Variables that are options of commands."""

_BROKER_PARTS: Final[dict[str, type[Settings]]] = {
    "settings": BrokerSettings,
    "data": DataSettings,
    "security": SecuritySettings,
    "quotas": QuotaSettings,
    "admin": AdminSettings,
    "groups": GroupSettings,
    "transactions": TransactionSettings,
}
"""By the name that Broker takes them under."""
_STORE_PARTS: Final[tuple[type[Settings], ...]] = (
    StoreSettings,
    CleanerSettings,
    TierSettings,
    MetadataSettings,
)
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_IN_OTHER_UNITS: Final = {
    "log.retention.ms": (("log.retention.minutes", _MINUTE_MS), ("log.retention.hours", _HOUR_MS)),
    "log.roll.ms": (("log.roll.hours", _HOUR_MS),),
    "log.roll.jitter.ms": (("log.roll.jitter.hours", _HOUR_MS),),
}
"""Kafka's other names for a setting; the first that is given counts, the setting itself before."""
_SERVED: Final = {"log.message.timestamp.after.max.ms": str(_HOUR_MS)}
"""Kafka's defaults where a store that is opened in the process has another; 0010-the-server.md."""
_RENAMED: Final = {"broker.id": "node.id", "log.dir": "log.dirs"}
_DIRECTORIES: Final = "log.dirs"
_AUTHORIZER: Final = "authorizer.class.name"
_CONTROLLERS: Final = "controller.listener.names"


@dataclass(frozen=True, slots=True)
class ServePlan:
    """Everything that a server is made from."""

    directories: tuple[str, ...]
    store: dict[str, str]
    broker: dict[str, Any]
    """Settings of the broker's parts, by the names that Broker takes them under."""
    server: ServerSettings
    tls: TlsSettings
    of_listeners: dict[str, str]
    """Those of one listener, by their full names."""
    warnings: list[str] = field(default_factory=list)


def read_environment(variables: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Settings by Kafka's names, and the variables that stand for none.

    Raises InvalidSetting for an authorizer without a name: nobody means to switch rights off so.
    """
    names = {variable_of(name): name for name in (*_known_names(), _DIRECTORIES)}
    found: dict[str, str] = {}
    unknown: list[str] = []
    for variable, value in variables.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in _OF_COMMANDS:
            continue
        name = names.get(variable) or _store_name(variable)
        if name is None:
            unknown.append(variable)
        elif name == _AUTHORIZER and not value:
            raise InvalidSetting(f"{variable} is empty: give it a value, or unset it")
        else:
            found[name] = value
    return found, [_unknown_variable(one, names) for one in unknown]


def variable_of(name: str) -> str:
    """`listeners` is VARVE_LISTENERS, `varve.tier.url` is VARVE_TIER_URL."""
    return ENVIRONMENT_PREFIX + _underscored(name.removeprefix(_OWN_PREFIX))


def _underscored(name: str) -> str:
    return name.replace(".", "_").replace("-", "_").upper()


def _store_name(variable: str) -> str | None:
    """A setting of the cold tier's object store, whose names are that store's own."""
    for prefix in _STORE_PREFIXES:
        start = variable_of(prefix)
        if variable.startswith(start):
            return prefix + variable.removeprefix(start).lower().replace("_", ".")
    return None


def _unknown_variable(variable: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(variable, known, n=1, cutoff=0.6)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return f"{variable} in the environment stands for no setting{hint}"


def make_plan(
    given: Mapping[str, str], directories: Sequence[str], *, default_directory: str
) -> ServePlan:
    """Sorts settings by the part that they speak to; raises InvalidSetting."""
    settings, warnings = _translate(given)
    paths = tuple(directories) or _listed(settings.pop(_DIRECTORIES, ""))
    settings.pop(_DIRECTORIES, None)
    warnings += _drop_controllers(settings)
    store_names = set(_store_names())
    store = dict(_SERVED)
    of_listeners: dict[str, str] = {}
    rest: dict[str, str] = {}
    for name, value in settings.items():
        if name in store_names or name.startswith(_STORE_PREFIXES):
            store[name] = value
        elif name.startswith(_LISTENER_PREFIX):
            of_listeners[name] = value
        else:
            rest[name] = value
    warnings += _drop_unknown(rest)
    return ServePlan(
        paths or (default_directory,),
        store,
        {part: _parse_part(kind, rest) for part, kind in _BROKER_PARTS.items()},
        _parse_part(ServerSettings, rest),
        _parse_part(TlsSettings, rest),
        of_listeners,
        warnings,
    )


def _translate(given: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Kafka's other names become those that varve has."""
    settings = dict(given)
    warnings = []
    for other, name in _RENAMED.items():
        if other in settings:
            settings.setdefault(name, settings.pop(other))
            settings.pop(other, None)
    for name, others in _IN_OTHER_UNITS.items():
        for other, milliseconds in others:
            text = settings.pop(other, None)
            if text is None:
                continue
            if name in settings:
                warnings.append(f"{other} is ignored, as {name} is given too")
            else:
                settings[name] = _in_milliseconds(other, text, milliseconds)
    return settings, warnings


def _in_milliseconds(name: str, text: str, unit_ms: int) -> str:
    try:
        count = int(text)
    except ValueError:
        raise InvalidSetting(f"{name} is {text!r:.80}, but must be a whole number") from None
    return str(count if count < 0 else count * unit_ms)


def _drop_controllers(settings: dict[str, str]) -> list[str]:
    """A combined node of Kafka listens for controllers, too; there are none here."""
    controllers = {one.upper() for one in _listed(settings.get(_CONTROLLERS, ""))}
    warnings = []
    for name in ("listeners", "advertised.listeners"):
        kept = []
        for one in _listed(settings.get(name, "")):
            if one.partition("://")[0].upper() in controllers:
                warnings.append(f"{one} in {name} is for controllers, which varve has none of")
            else:
                kept.append(one)
        if name in settings:
            settings[name] = ",".join(kept)
    return warnings


def _drop_unknown(rest: dict[str, str]) -> list[str]:
    known = set(_server_names())
    ignored = sorted(name for name in rest if name not in known and name in KAFKA_NAMES)
    for name in ignored:
        del rest[name]
    for name in rest:
        if name not in known:
            raise InvalidSetting(_unknown_name(name))
    if not ignored:
        return []
    return [f"settings of Kafka without a meaning here are ignored: {', '.join(ignored)}"]


def _unknown_name(name: str) -> str:
    for declaration in declared(LogSettings):
        if name == declaration.kafka_name and declaration.broker_name:
            return (
                f"{name!r:.120} is a setting of one topic: set {declaration.broker_name} for all "
                "topics, "
                "or alter the topic"
            )
    nearest = difflib.get_close_matches(name, [*_known_names(), *KAFKA_NAMES], n=1, cutoff=0.5)
    remedy = f"did you mean {nearest[0]!r}?" if nearest else "docs/configuration.md lists all"
    return f"unknown setting {name!r:.120}: {remedy}"


def _parse_part(kind: type[Settings], rest: Mapping[str, str]) -> Any:
    known = {declaration.kafka_name for declaration in declared(kind)}
    part = {name: value for name, value in rest.items() if name in known}
    return parse_settings(kind, part, "the server's settings")


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


def _listed(text: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in text.split(",") if one.strip())
