"""How commands come to a broker: its address, the settings of the client, and who waits how long.

Any broker that speaks Kafka's protocol will do. The clients are librdkafka's; its settings are
given with -X or in a file, TLS and SASL among them.

Invariant  a broker that does not answer is told of within seconds.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from varve.cli.kafka_errors import Denied, as_error, denied, login_refused, unreachable
from varve.cli.store_access import parse_setting
from varve.foundation.errors import InvalidSetting, Unavailable

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient

DEFAULT_BROKER: Final = "localhost:9092"
REACH_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.01
_GRACE_SECONDS: Final = 1.0
"""A name may stand for several addresses; the next is tried when one refuses."""
_DEFAULTS: Final = {"client.id": "varve-cli", "socket.connection.setup.timeout.ms": "5000"}

T = TypeVar("T")

BrokerAddress = Annotated[
    str,
    typer.Option(
        "--broker",
        "-b",
        envvar="VARVE_BROKER",
        metavar="HOST:PORT",
        help="Where a broker listens; several with commas.",
    ),
]
ClientSettings = Annotated[
    list[str],
    typer.Option(
        "-X",
        metavar="NAME=VALUE",
        help="A setting of librdkafka's, e.g. security.protocol=SASL_SSL; may be repeated.",
    ),
]
ClientFile = Annotated[
    Path | None,
    typer.Option(
        "--client-config",
        envvar="VARVE_CLIENT_CONFIG",
        metavar="PATH",
        help="A file of such settings, one on each line: the place for passwords.",
    ),
]


@dataclass(slots=True)
class KafkaClient:
    """The way to one cluster; makes clients of each kind."""

    address: str
    settings: dict[str, str]
    _errors: "list[KafkaError]" = field(default_factory=list)
    _admin: "AdminClient | None" = None

    def config(self, **own: object) -> dict[str, Any]:
        """The settings of a client; what the user gave counts before `own`."""
        own_names = {name.replace("_", "."): value for name, value in own.items()}
        return {
            **_DEFAULTS,
            **own_names,
            "bootstrap.servers": self.address,
            **self.settings,
            "error_cb": self._errors.append,
            # What the library says of its connections; errors are told by the commands.
            "logger": logging.getLogger("varve.kafka"),
        }

    def admin(self) -> "AdminClient":
        """The client for the administration, of a broker that has answered.

        It is kept: what was asked is never answered once the one who asked is gone.
        """
        from confluent_kafka.admin import AdminClient

        if self._admin is None:
            self._admin = self._made(AdminClient, self.config())
            self._reach(self._admin)
        return self._admin

    def consumer(self, **own: object) -> "Consumer":
        from confluent_kafka import Consumer

        return self._made(Consumer, self.config(**own))

    def producer(self, **own: object) -> "Producer":
        from confluent_kafka import Producer

        return self._made(Producer, self.config(**own))

    def _made(self, kind: Callable[[dict[str, Any]], T], config: dict[str, Any]) -> T:
        from confluent_kafka import KafkaException

        try:
            return kind(config)
        except KafkaException as error:
            raise InvalidSetting(
                f"librdkafka refuses a setting: {error.args[0].str()}; mend -X or --client-config"
            ) from error

    def _reach(self, admin: "AdminClient") -> None:
        """Raises unless the broker answers soon."""
        asked = admin.describe_cluster(request_timeout=REACH_SECONDS)
        deadline = time.monotonic() + REACH_SECONDS
        while not asked.done():
            failure = self.find_failure()
            waited = REACH_SECONDS - (deadline - time.monotonic())
            if failure is not None and (waited > _GRACE_SECONDS or isinstance(failure, Denied)):
                raise failure
            if waited > REACH_SECONDS:
                raise unreachable(self.address, f"within {REACH_SECONDS:.0f} s")
            admin.poll(_LOOK_SECONDS)
        self.result(asked, "the cluster")
        self.forget_failures()

    def check_may_describe(self, what: str) -> None:
        """Raises Denied unless whoever is logged in may describe the cluster.

        The library takes a refusal of rights for an empty list, and one of users ends the process.
        """
        asked = self.admin().describe_cluster(include_authorized_operations=True)
        allowed = self.result(asked, what).authorized_operations or ()
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
        found = [one for one in self._errors if one.code() in final]
        return self._explained(found[-1]) if found else None

    def _explained(self, error: "KafkaError") -> Exception:
        """The error, by the most telling of what was met on the way."""
        from confluent_kafka import KafkaError

        refused = (KafkaError._AUTHENTICATION, KafkaError._SSL)
        for one in self._errors:
            if one.code() in refused:
                return login_refused(self.address, _reason(one))
        for one in self._errors:
            if one.code() in (KafkaError._TRANSPORT, KafkaError._RESOLVE):
                return unreachable(self.address, _reason(one))
        return as_error(error, "the broker", address=self.address)

    def result(self, asked: "Future[T]", what: str) -> T:
        """What a request came to; raises with what was asked for."""
        from confluent_kafka import KafkaException

        try:
            return asked.result(timeout=ANSWER_SECONDS)
        except KafkaException as error:
            raise self.as_error(error.args[0], what) from error
        except FutureTimeoutError:
            raise unreachable(self.address, f"within {ANSWER_SECONDS:.0f} s") from None
        except (ValueError, TypeError) as error:
            raise InvalidSetting(f"{what}: {error}") from error

    def as_error(self, error: "KafkaError", what: str) -> Exception:
        """What to raise for an error of the library's; by the way it met, where it has one."""
        told = as_error(error, what, address=self.address)
        return (self.find_failure() or told) if isinstance(told, Unavailable) else told


def admin_api() -> Any:
    """The names of the administration; the library does not declare them for type checkers."""
    import confluent_kafka.admin

    return confluent_kafka.admin


def make_client(address: str, settings: list[str], file: Path | None) -> KafkaClient:
    """The way to a cluster as the command line tells it; -X counts before the file."""
    given = read_client_file(file) if file else {}
    given.update(parse_setting(one) for one in settings)
    return KafkaClient(given.pop("bootstrap.servers", address), given)


def read_client_file(path: Path) -> dict[str, str]:
    """The settings of a file: `name=value` lines; those that begin with # are passed over."""
    found = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        text = line.strip()
        if text and not text.startswith("#"):
            name, equals, value = text.partition("=")
            if not equals:
                raise InvalidSetting(f"{path}, line {number}: {text!r:.60} is not name=value")
            found[name.strip()] = value.strip()
    return found


def _reason(error: "KafkaError") -> str:
    """`host:port/id: Connect to … failed: Connection refused (after 0ms in state CONNECT)`."""
    text = " ".join(error.str().split())
    return text.partition(" (after ")[0].partition(": ")[2] or text
