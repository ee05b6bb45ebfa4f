"""Settings that one listener has of its own: `listener.name.<name>.<setting>`.

Kafka's names: a mechanism may stand between, in small letters, as in
`listener.name.sasl_ssl.plain.sasl.jaas.config`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from varve.broker.security.settings import MECHANISMS
from varve.foundation.errors import InvalidSetting
from varve.foundation.settings import declared
from varve.kafka_server.tls_settings import TlsSettings

PREFIX: Final = "listener.name."
JAAS: Final = "sasl.jaas.config"
ENABLED_MECHANISMS: Final = "sasl.enabled.mechanisms"
MAX_REAUTH: Final = "connections.max.reauth.ms"

_OF_A_LISTENER: Final = frozenset(
    {ENABLED_MECHANISMS, MAX_REAUTH, *(one.kafka_name for one in declared(TlsSettings))}
)
_OF_A_MECHANISM: Final = frozenset(
    f"{mechanism.lower()}.{name}" for mechanism in MECHANISMS for name in (JAAS, MAX_REAUTH)
)


class ListenerOverrides:
    """All such settings, by listener; raises InvalidSetting for one that nobody understands."""

    def __init__(self, given: Mapping[str, str], listeners: Iterable[str]) -> None:
        self._by_listener: dict[str, dict[str, str]] = {one.lower(): {} for one in listeners}
        for key, value in given.items():
            listener, name = self._parse(key)
            if name not in _OF_A_LISTENER and name not in _OF_A_MECHANISM:
                known = ", ".join(sorted(_OF_A_LISTENER | _OF_A_MECHANISM))
                raise InvalidSetting(
                    f"unknown setting {key!r:.120}: a listener has {known} of its own"
                )
            self._by_listener[listener][name] = value

    def _parse(self, key: str) -> tuple[str, str]:
        # A listener's name may have dots, so the longest that fits is meant.
        rest = key.removeprefix(PREFIX)
        fitting = [one for one in self._by_listener if rest.startswith(f"{one}.")]
        if not key.startswith(PREFIX) or not fitting:
            raise InvalidSetting(
                f"{key!r:.120} is for no listener of this server; there are "
                f"{', '.join(self._by_listener)}"
            )
        listener = max(fitting, key=len)
        return listener, rest.removeprefix(f"{listener}.")

    def of(self, listener: str) -> dict[str, str]:
        """What a listener has of its own, by the names without the prefix."""
        return self._by_listener.get(listener.lower(), {})
