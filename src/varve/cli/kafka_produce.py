"""The work of `varve produce`: records out of lines or files, delivered, and counted.

Invariant  the count that is told is that of records the broker acknowledged; a transaction that
           does not end well is aborted.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import typer

from varve.cli.kafka_client import ANSWER_SECONDS, KafkaClient, admin_api
from varve.cli.kafka_format import (
    KafkaHeaders,
    KafkaRecord,
    parse_format,
    record_reader,
    shown,
)
from varve.cli.kafka_progress import record_progress
from varve.cli.log_input import parse_json, read_chunks
from varve.foundation.errors import InvalidRecord, NotFound, StoreError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

_FULL_SECONDS: Final = 0.1

ReadLine = Callable[[bytes], KafkaRecord | None]
"""A line's record; None for a line that holds none."""


@dataclass(frozen=True, slots=True)
class Input:
    """A named stream of lines, or of one value."""

    name: str
    stream: BinaryIO


@dataclass(frozen=True, slots=True)
class Source:
    """How input becomes records."""

    read_line: ReadLine
    is_whole: bool = False

    def records(self, given: Input) -> Iterator[tuple[KafkaRecord, int]]:
        """Records, and the bytes each was read from."""
        if self.is_whole:
            data = given.stream.read()
            record = self.read_line(data)
            assert record is not None
            yield record, len(data)
            return
        for chunk in read_chunks(given.stream):
            for number, line in enumerate(chunk.lines, start=chunk.first):
                try:
                    kafka_record = self.read_line(line)
                except InvalidRecord as error:
                    raise InvalidRecord(f"{given.name}, line {number}: {error}") from error
                if kafka_record is not None:
                    yield kafka_record, len(line) + 1


@dataclass(frozen=True, slots=True)
class Delivery:
    """What the producer promises; None where no option says it."""

    codec: str | None
    acks: str | None
    idempotent: bool | None
    transaction: str | None

    def settings(self) -> dict[str, Any]:
        """What the options say; the rest may be changed by -X and the client file."""
        defaults: dict[str, object] = {
            "compression_type": "lz4",
            "acks": "all",
            "enable_idempotence": True,
            "partitioner": "murmur2_random",
            "linger_ms": 20,
            "message_timeout_ms": int(ANSWER_SECONDS * 1000),
        }
        # Fewer acknowledgements than all cannot promise idempotence.
        idempotent = False if self.acks not in (None, "all") else self.idempotent
        options = {
            "compression_type": self.codec,
            "acks": self.acks,
            "enable_idempotence": idempotent,
            "transactional_id": self.transaction,
        }
        required = {name: value for name, value in options.items() if value is not None}
        return {"defaults": defaults, **required}


def choose_source(
    topic: str,
    *,
    key_separator: str | None,
    format: str | None,
    json_lines: bool,
    whole_files: bool,
    empty_as_null: bool,
    headers: Sequence[str],
    partition: int | None,
) -> Source:
    """The reader of lines that the options mean; raises BadParameter for two at once."""
    ways = {
        "--key-separator": key_separator is not None,
        "--format": format is not None,
        "--json": json_lines,
        "--whole-files": whole_files,
    }
    chosen = [name for name, is_given in ways.items() if is_given]
    if len(chosen) > 1:
        raise typer.BadParameter(f"{' and '.join(chosen)} exclude each other")
    read: ReadLine
    if format is not None:
        read = record_reader(parse_format(format), topic)
    elif json_lines:
        read = _json_reader(topic)
    elif key_separator is not None:
        read = _key_reader(topic, key_separator)
    else:
        read = lambda line: KafkaRecord(topic, -1, -1, -1, None, line)  # noqa: E731
    return Source(
        _finished(read, _parse_headers(headers), partition, empty_as_null), is_whole=whole_files
    )


def _key_reader(topic: str, separator: str) -> ReadLine:
    if not separator:
        raise typer.BadParameter("--key-separator is empty")
    mark = separator.replace("\\t", "\t").encode()

    def read(line: bytes) -> KafkaRecord:
        key, found, value = line.partition(mark)
        if not found:
            raise InvalidRecord(f"no key separator {separator!r} in {shown(line)}")
        return KafkaRecord(topic, -1, -1, -1, key, value)

    return read


def _json_reader(topic: str) -> ReadLine:
    def read(line: bytes) -> KafkaRecord | None:
        parts = parse_json(_without_topic(line))
        if parts is None:
            return None
        key, value, headers, timestamp = parts
        pairs = [(name, _bytes(one)) for name, one in headers]
        stamp = -1 if timestamp is None else timestamp
        return KafkaRecord(topic, -1, -1, stamp, _bytes(key), _bytes(value), pairs)

    return read


def _without_topic(line: bytes) -> bytes:
    """What `varve consume --json` writes names the topic it came from."""
    with contextlib.suppress(ValueError, RecursionError):
        content = json.loads(line)
        if isinstance(content, dict) and content.pop("topic", None) is not None:
            return json.dumps(content).encode()
    return line


def _bytes(data: bytes | str | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def _parse_headers(given: Sequence[str]) -> KafkaHeaders:
    headers: KafkaHeaders = []
    for one in given:
        name, equals, value = one.partition("=")
        if not name:
            raise typer.BadParameter(f"--header {one!r} has no name; write NAME=VALUE")
        headers.append((name, value.encode() if equals else None))
    return headers


def _finished(
    read: ReadLine, headers: KafkaHeaders, partition: int | None, empty_as_null: bool
) -> ReadLine:
    """Adds what every record has."""

    def finish(line: bytes) -> KafkaRecord | None:
        record = read(line)
        if record is None:
            return None
        if headers:
            record = replace(record, headers=[*record.headers, *headers])
        if partition is not None:
            record = replace(record, partition=partition)
        if empty_as_null:
            record = replace(record, key=record.key or None, value=record.value or None)
        return record

    return finish


@contextlib.contextmanager
def open_inputs(files: Sequence[Path], stdin: BinaryIO) -> Iterator[list[Input]]:
    """The files, or standard input where none is named."""
    with contextlib.ExitStack() as stack:
        opened = [Input(str(path), stack.enter_context(path.open("rb"))) for path in files]
        yield opened or [Input("standard input", stdin)]


def produce(
    client: KafkaClient,
    topic: str,
    source: Source,
    inputs: Sequence[Input],
    delivery: Delivery,
    *,
    creates_topic: bool,
) -> int:
    """Delivers everything and gives its count; a failure tells how many were delivered."""
    _check_topic(client, topic, creates_topic=creates_topic)
    run = _Run(client, client.producer(**delivery.settings()), topic, delivery)
    try:
        run.begin()
        with record_progress("producing", [input_.stream for input_ in inputs]) as advance:
            for input_ in inputs:
                for record, size in source.records(input_):
                    run.send(record)
                    advance(size)
                run.serve()
        run.finish()
    except InvalidRecord as error:
        run.stop_reading()
        raise InvalidRecord(f"{error} ({run.told()})") from error
    except StoreError as error:
        run.give_up()
        raise type(error)(f"{error} ({run.told()})") from error
    except KeyboardInterrupt:
        run.give_up()
        typer.echo(f"interrupted: {run.told()}", err=True)
        raise
    return run.delivered


def _check_topic(client: KafkaClient, topic: str, *, creates_topic: bool) -> None:
    """A broker may make a topic that it is asked for; whoever mistypes a name must not."""
    from varve.cli.topic import describe_topic

    admin = client.admin()
    try:
        describe_topic(client, admin, topic)
    except NotFound:
        if not creates_topic:
            raise
        [asked] = admin.create_topics([admin_api().NewTopic(topic, -1, -1)]).values()
        client.result(asked, f"topic {topic}")


class _Run:
    """Records on their way, and how they fared."""

    def __init__(
        self, client: KafkaClient, producer: "Producer", topic: str, delivery: Delivery
    ) -> None:
        self._client = client
        self._producer = producer
        self._topic = topic
        self._transaction = delivery.transaction
        self._is_open = False
        self._failure: KafkaError | None = None
        self.delivered = 0

    def begin(self) -> None:
        if self._transaction is not None:
            self._call(lambda: self._producer.init_transactions(ANSWER_SECONDS))
            self._call(self._producer.begin_transaction)
            self._is_open = True

    def _call(self, work: Callable[[], Any]) -> None:
        from confluent_kafka import KafkaException

        try:
            work()
        except KafkaException as error:
            what = f"transaction {self._transaction}"
            raise self._client.as_error(error.args[0], what) from error

    def _flush(self) -> int:
        """What is still under way; raises for an error after which the producer is of no use."""
        from confluent_kafka import KafkaException

        try:
            return self._producer.flush(_FULL_SECONDS)
        except KafkaException as error:
            raise self._refused(error) from error

    def send(self, record: KafkaRecord) -> None:
        options: dict[str, Any] = {"headers": record.headers or None}
        if record.partition >= 0:
            options["partition"] = record.partition
        if record.timestamp >= 0:
            options["timestamp"] = record.timestamp
        while True:
            try:
                self._producer.produce(
                    record.topic,
                    value=record.value,
                    key=record.key,
                    on_delivery=self._note,
                    **options,
                )
                break
            except BufferError:
                self._producer.poll(_FULL_SECONDS)
                self._check()
            except Exception as error:
                raise self._refused(error) from error
        self._producer.poll(0)
        self._check()

    def _refused(self, error: Exception) -> Exception:
        from confluent_kafka import KafkaException

        if isinstance(error, KafkaException):
            return self._client.as_error(error.args[0], f"topic {self._topic}")
        return error

    def _note(self, error: "KafkaError | None", message: object) -> None:
        if error is None:
            self.delivered += 1
        elif self._failure is None:
            self._failure = error

    def serve(self) -> None:
        self._producer.poll(0)
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._client.as_error(self._failure, f"topic {self._topic}")

    def finish(self) -> None:
        """Waits until everything is delivered, and commits."""
        while self._flush():
            self._check()
        self._check()
        if self._is_open:
            self._call(lambda: self._producer.commit_transaction(ANSWER_SECONDS))
            self._is_open = False

    def stop_reading(self) -> None:
        """The input cannot be read further: what came before is delivered, or aborted."""
        if self._is_open:
            self.give_up()
        else:
            self.finish()

    def give_up(self) -> None:
        """Lets go of what is under way; nothing of a transaction is kept."""
        from confluent_kafka import KafkaException

        # The error that brought us here is told; after a fatal one these raise it again.
        with contextlib.suppress(KafkaException):
            self._producer.purge()
            self._producer.flush(1)
        if self._is_open:
            with contextlib.suppress(KafkaException):
                self._producer.abort_transaction(ANSWER_SECONDS)

    def told(self) -> str:
        if self._is_open:
            return "the transaction was aborted: nothing is kept"
        count = self.delivered
        return f"{count:,} record{' was' if count == 1 else 's were'} delivered before it"
