"""Clients of one cluster, on librdkafka: any broker that speaks Kafka's protocol.

Settings are librdkafka's, TLS and SASL among them.

Invariant  a broker that does not answer is reported within seconds.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from varve.brokers.errors import Denied, as_error, denied, login_refused, unreachable
from varve.foundation.errors import InvalidSetting, Unavailable

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient

    from varve.kafka_client.address import ClusterAddress

DEFAULT_BOOTSTRAP: Final = "localhost:9092"
BOOTSTRAP_SETTING: Final = "bootstrap.servers"
CONNECT_SECONDS: Final = 5.0
RESPONSE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.01
_GRACE_SECONDS: Final = 1.0
"""A name may stand for several addresses; the next is tried when one refuses."""
_ALIASES: Final = {"metadata.broker.list": BOOTSTRAP_SETTING, "sasl.mechanism": "sasl.mechanisms"}
_OWN_NAMES: Final = {"sasl.mechanisms": "sasl.mechanism"}
"""Names of varve's own client."""
_DEFAULTS: Final = {"client.id": "varve-cli", "socket.connection.setup.timeout.ms": "5000"}

T = TypeVar("T")


@dataclass(slots=True)
class BrokerClient:
    """The way to one cluster; makes clients of each kind."""

    address: str
    settings: dict[str, str]
    _errors: "list[KafkaError]" = field(default_factory=list)
    _admin: "AdminClient | None" = None

    def config(
        self, *, defaults: Mapping[str, object] | None = None, **required: object
    ) -> dict[str, Any]:
        """The settings of a client, named with `_` for `.`.

        `required` is what the command depends on, or has an option for: neither -X nor the file
        changes it. They do change `defaults`.
        """
        return {
            **_DEFAULTS,
            **_dotted(defaults or {}),
            **self.settings,
            **_dotted(required),
            BOOTSTRAP_SETTING: self.address,
            "error_cb": self._errors.append,
            # Messages about connections; the commands report the errors.
            "logger": logging.getLogger("varve.kafka"),
        }

    def cluster_address(self) -> "ClusterAddress":
        """The broker, login and certificates for varve's own client, which ignores the rest."""
        from varve.kafka_client.address import parse_cluster_address

        settings = {_OWN_NAMES.get(name, name): value for name, value in self.settings.items()}
        address = parse_cluster_address({**settings, BOOTSTRAP_SETTING: self.address})
        assert address is not None, "it has the address of a broker"
        return address

    def admin(self) -> "AdminClient":
        """The client for administration, of a broker that has answered.

        It is kept: requests of a client that is gone are never answered.
        """
        from confluent_kafka.admin import AdminClient

        if self._admin is None:
            self._admin = self._made(AdminClient, self.config())
            self._reach(self._admin)
        return self._admin

    def consumer(
        self, *, defaults: Mapping[str, object] | None = None, **required: object
    ) -> "Consumer":
        from confluent_kafka import Consumer

        return self._made(Consumer, self.config(defaults=defaults, **required))

    def producer(
        self, *, defaults: Mapping[str, object] | None = None, **required: object
    ) -> "Producer":
        from confluent_kafka import Producer

        return self._made(Producer, self.config(defaults=defaults, **required))

    def _made(self, kind: Callable[[dict[str, Any]], T], config: dict[str, Any]) -> T:
        from confluent_kafka import KafkaException

        try:
            return kind(config)
        except KafkaException as error:
            raise InvalidSetting(_explain_setting(error.args[0].str())) from error

    def _reach(self, admin: "AdminClient") -> None:
        """Raises unless the broker answers soon."""
        future = admin.describe_cluster(request_timeout=CONNECT_SECONDS)
        deadline = time.monotonic() + CONNECT_SECONDS
        while not future.done():
            failure = self.find_failure()
            waited = CONNECT_SECONDS - (deadline - time.monotonic())
            if failure is not None and (waited > _GRACE_SECONDS or isinstance(failure, Denied)):
                raise failure
            if waited > CONNECT_SECONDS:
                raise unreachable(self.address, f"within {CONNECT_SECONDS:.0f} s")
            admin.poll(_POLL_SECONDS)
        self.result(future, "the cluster")
        self.forget_failures()

    def check_may_describe(self, what: str) -> None:
        """Raises Denied unless the authenticated user may describe the cluster.

        librdkafka returns an authorization error as an empty list, and crashes for users.
        """
        future = self.admin().describe_cluster(include_authorized_operations=True)
        allowed = self.result(future, what).authorized_operations or ()
        if not {"DESCRIBE", "ALL"} & {one.name for one in allowed}:
            raise denied(what, "Cluster authorization failed")

    def forget_failures(self) -> None:
        """What was met on the way no longer matters: there is an answer."""
        self._errors.clear()

    def find_failure(self) -> Exception | None:
        """What the connections met, once none of them works."""
        from confluent_kafka import KafkaError

        final = (
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._AUTHENTICATION,
            KafkaError._SSL,
            KafkaError._RESOLVE,
        )
        errors = [error for error in self._errors if error.code() in final]
        return self._explained(errors[-1]) if errors else None

    def _explained(self, error: "KafkaError") -> Exception:
        """The error, by the most telling of what was met on the way."""
        from confluent_kafka import KafkaError

        refused = (KafkaError._AUTHENTICATION, KafkaError._SSL)
        for kafka_error in self._errors:
            if kafka_error.code() in refused:
                return login_refused(self.address, _reason(kafka_error))
        for kafka_error in self._errors:
            if kafka_error.code() in (KafkaError._TRANSPORT, KafkaError._RESOLVE):
                return unreachable(self.address, _reason(kafka_error))
        return as_error(error, "the broker", address=self.address)

    def result(self, future: "Future[T]", what: str) -> T:
        """The result of a request; raises an error that names `what`."""
        from confluent_kafka import KafkaException

        try:
            return future.result(timeout=RESPONSE_SECONDS)
        except KafkaException as error:
            raise self.as_error(error.args[0], what) from error
        except FutureTimeoutError:
            raise unreachable(self.address, f"within {RESPONSE_SECONDS:.0f} s") from None
        except (ValueError, TypeError) as error:
            raise InvalidSetting(f"{what}: {error}") from error

    def call(self, what: str, function: Callable[..., T], *args: object) -> T:
        """Calls a function of the library; raises an error that names `what`."""
        from confluent_kafka import KafkaException

        try:
            return function(*args)
        except KafkaException as error:
            raise self.as_error(error.args[0], what) from error

    def as_error(self, error: "KafkaError", what: str) -> Exception:
        """What to raise for an error of the library's; by the way it met, where it has one."""
        store_error = as_error(error, what, address=self.address)
        return (
            (self.find_failure() or store_error)
            if isinstance(store_error, Unavailable)
            else store_error
        )


def admin_api() -> Any:
    """The names of the administration; the library does not declare them for type checkers."""
    import confluent_kafka.admin

    return confluent_kafka.admin


def read_client_file(path: Path) -> dict[str, str]:
    """The settings of a file: `name=value` lines; lines that begin with # are ignored."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidSetting(
            f"--command-config {path}: {error.strerror}; correct the path or its permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidSetting(
            f"--command-config {path} is not UTF-8 text: save it as UTF-8, one NAME=VALUE per line"
        ) from error
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        setting = line.strip()
        if setting and not setting.startswith("#"):
            name, equals, value = setting.partition("=")
            if not equals:
                raise InvalidSetting(f"{path}, line {number}: {setting!r:.60} is not NAME=VALUE")
            found[name.strip()] = value.strip()
    return found


def canonical_settings(settings: Mapping[str, str] | Iterable[tuple[str, str]]) -> dict[str, str]:
    """With one name for what librdkafka knows by two, so that one value replaces the other."""
    return {_ALIASES.get(name, name): value for name, value in dict(settings).items()}


def _explain_setting(reason: str) -> str:
    """What is wrong with the client settings, from librdkafka's reason."""
    if "GSSAPI" in reason:
        return (
            "security.protocol requires a login: set sasl.mechanism to PLAIN, SCRAM-SHA-256 or "
            "SCRAM-SHA-512, and sasl.username and sasl.password (with -X or --command-config)"
        )
    text = reason.removeprefix("Failed to create admin client: ")
    remedy = "correct it (in the shell with -X or --command-config)"
    if "acks" in text and "idempotence" in text:
        remedy = "set enable.idempotence=false too (in the shell, use --acks 1 --no-idempotence)"
    return f"librdkafka refuses a setting: {text}; {remedy}"


def _dotted(settings: Mapping[str, object]) -> dict[str, object]:
    return {name.replace("_", "."): value for name, value in settings.items()}


def _reason(error: "KafkaError") -> str:
    """`host:port/id: Connect to … failed: Connection refused (after 0ms in state CONNECT)`."""
    text = " ".join(error.str().split())
    return text.partition(" (after ")[0].partition(": ")[2] or text
