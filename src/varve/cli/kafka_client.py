"""How commands come to a broker: its address, the settings of the client, and who waits how long.

Any broker that speaks Kafka's protocol will do. The clients are librdkafka's; its settings are
given with -X or in a file, TLS and SASL among them.

Invariant  a broker that does not answer is told of within seconds.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
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
_BOOTSTRAP: Final = "bootstrap.servers"
_ALIASES: Final = {"metadata.broker.list": _BOOTSTRAP, "sasl.mechanism": "sasl.mechanisms"}
_DEFAULTS: Final = {"client.id": "varve-cli", "socket.connection.setup.timeout.ms": "5000"}

T = TypeVar("T")


class EnvironmentText(str):
    """The value of an option that an environment variable gave, not the command line."""


class EnvironmentPath(type(Path())):  # type: ignore[misc]  # the class for this system
    """A path that an environment variable gave, not the command line."""


def mark_environment(context: typer.Context, parameter: typer.CallbackParam, value: Any) -> Any:
    """A callback of options with a variable: what is given on the command line counts before."""
    source = context.get_parameter_source(str(parameter.name))
    if source is None or source.name != "ENVIRONMENT":
        return value
    if isinstance(value, list):
        return [EnvironmentPath(one) for one in value]
    return EnvironmentPath(value) if isinstance(value, Path) else EnvironmentText(value)


def is_from_environment(value: object) -> bool:
    """Whether an option with `mark_environment` has its value from an environment variable."""
    if isinstance(value, list):
        return bool(value) and is_from_environment(value[0])
    return isinstance(value, EnvironmentText | EnvironmentPath)


BrokerAddress = Annotated[
    str | None,
    typer.Option(
        "--broker",
        "-b",
        envvar="VARVE_BROKER",
        callback=mark_environment,
        metavar="HOST:PORT",
        help="Where a broker listens; several with commas. Left out, bootstrap.servers of -X or of "
        f"--client-config, else {DEFAULT_BROKER}.",
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
        callback=mark_environment,
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

    def config(
        self, *, defaults: Mapping[str, object] | None = None, **required: object
    ) -> dict[str, Any]:
        """The settings of a client, named with `_` for `.`.

        `required` is what the command depends on, or was told by an option of its own: neither -X
        nor the file changes it. They do change `defaults`.
        """
        return {
            **_DEFAULTS,
            **_dotted(defaults or {}),
            **self.settings,
            **_dotted(required),
            _BOOTSTRAP: self.address,
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


def make_client(address: str | None, settings: list[str], file: Path | None) -> KafkaClient:
    """A client of the cluster that the command line names.

    What is said on the command line counts before the environment, and that before the file:
    -b, then -X, then a file that --client-config names, then VARVE_BROKER, then the file that
    VARVE_CLIENT_CONFIG names. Raises InvalidSetting where -b and -X name different brokers.
    """
    in_file = _canonical(read_client_file(file)) if file else {}
    in_options = _canonical(parse_setting(setting) for setting in settings)
    from_file = in_file.pop(_BOOTSTRAP, None)
    from_option = in_options.pop(_BOOTSTRAP, None)
    if is_from_environment(address):
        by_rank = [from_option, address, from_file]
        if not is_from_environment(file):
            by_rank = [from_option, from_file, address]
    else:
        if address and from_option and address != from_option:
            raise InvalidSetting(
                f"--broker says {address}, -X {_BOOTSTRAP} says {from_option}; leave one out"
            )
        by_rank = [address, from_option, from_file]
    chosen = next((one for one in by_rank if one), DEFAULT_BROKER)
    return KafkaClient(chosen, {**in_file, **in_options})


def read_client_file(path: Path) -> dict[str, str]:
    """The settings of a file: `name=value` lines; those that begin with # are passed over."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"--client-config {path} cannot be read: {error}") from error
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        setting = line.strip()
        if setting and not setting.startswith("#"):
            name, equals, value = setting.partition("=")
            if not equals:
                raise InvalidSetting(f"{path}, line {number}: {setting!r:.60} is not name=value")
            found[name.strip()] = value.strip()
    return found


def _canonical(settings: Mapping[str, str] | Iterable[tuple[str, str]]) -> dict[str, str]:
    """With one name for what librdkafka knows by two, so that one value replaces the other."""
    return {_ALIASES.get(name, name): value for name, value in dict(settings).items()}


def _dotted(settings: Mapping[str, object]) -> dict[str, object]:
    return {name.replace("_", "."): value for name, value in settings.items()}


def _reason(error: "KafkaError") -> str:
    """`host:port/id: Connect to … failed: Connection refused (after 0ms in state CONNECT)`."""
    text = " ".join(error.str().split())
    return text.partition(" (after ")[0].partition(": ")[2] or text
