"""The work of `varve consume`: records of a topic up to its end, or as they come.

Invariant  without --follow it ends at the offsets that were the ends when it began, however much
           is written meanwhile. A group's offsets are committed for what was given out.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer

from varve.cli.kafka_client import KafkaClient, admin_api
from varve.cli.kafka_errors import Denied
from varve.cli.kafka_format import KafkaRecord, parse_format, record_writer
from varve.cli.log_output import json_cell
from varve.cli.log_start import Start, StartKind, parse_start
from varve.foundation.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message
    from confluent_kafka.admin import AdminClient

_POLL_SECONDS: Final = 0.2
_BATCH: Final = 500
_JOIN_POLLS: Final = 150
"""So many empty polls without a partition: nobody lets us into the group."""

_GONE_POLLS: Final = 25
"""So many without a record while no broker answers: it is gone."""

Write = Callable[[KafkaRecord], bytes]


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    """What the command line asked for."""

    topic: str
    partition: int | None
    start: str
    last: int | None
    count: int | None
    follow: bool
    group: str | None
    committed: bool


def choose_writer(
    *,
    format: str | None,
    key_separator: str | None,
    with_headers: bool,
    as_json: bool,
    is_terminal: bool,
) -> Write:
    """The form of a record that the options mean; raises BadParameter for two at once."""
    parts = key_separator is not None or with_headers
    if (format is not None) + as_json + parts > 1:
        raise typer.BadParameter(
            "--format, --json, and --key-separator or --headers exclude each other"
        )
    if as_json:
        return write_json
    if format is None:
        key = "" if key_separator is None else f"%k{_escaped(key_separator)}"
        format = ("%h\\t" if with_headers else "") + key + "%v\\n"
    write = record_writer(parse_format(format))
    if not is_terminal:
        return write
    return lambda record: write(record).decode(errors="backslashreplace").encode()


def _escaped(separator: str) -> str:
    """The separator as a format has it; `\\t` is a tab as everywhere."""
    text = separator.replace("\\t", "\t")
    return text.replace("%", "%%").replace("\\", "\\\\")


def write_json(record: KafkaRecord) -> bytes:
    """A line that `varve produce --json` takes back."""
    content: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": json_cell(record.key),
        "value": json_cell(record.value),
    }
    if record.headers:
        pairs = [(name, json_cell(value)) for name, value in record.headers]
        # An object cannot hold a name twice, a record can.
        is_plain = len({name for name, _ in pairs}) == len(pairs)
        content["headers"] = dict(pairs) if is_plain else pairs
    return json.dumps(content, ensure_ascii=False).encode() + b"\n"


def consume(
    client: KafkaClient, request: ConsumeRequest, idle: Callable[[], None]
) -> Iterator[KafkaRecord]:
    """The records that are wanted; `idle` is called when there is nothing more right now."""
    from varve.cli.topic import describe_topic

    start = parse_start(request.start)
    admin = client.admin()
    described = describe_topic(client, admin, request.topic)
    numbers = sorted(partition_info.id for partition_info in described.partitions)
    if request.partition is not None and request.partition not in numbers:
        raise NotFound(
            f"topic {request.topic} has no partition {request.partition}; it has 0 to "
            f"{len(numbers) - 1}"
        )
    wanted = numbers if request.partition is None else [request.partition]
    if start.kind is StartKind.OFFSET and len(wanted) > 1:
        raise InvalidRequest(
            f"topic {request.topic} has {len(wanted)} partitions, each with its own offsets; "
            "name one with --partition"
        )
    if request.count == 0:
        return
    consumer = client.consumer(**_consumer_settings(request))
    try:
        reading = _Reading(client, consumer, request)
        if request.group is None:
            ranges = _find_ranges(client, admin, request, start, wanted)
            yield from reading.read_ranges(ranges, idle)
        else:
            yield from reading.read_as_member(idle)
    finally:
        consumer.close()


def _find_ranges(
    client: KafkaClient,
    admin: "AdminClient",
    request: ConsumeRequest,
    start: Start,
    numbers: list[int],
) -> dict[int, tuple[int, int]]:
    """Where to begin and where the end is now, by partition."""
    from confluent_kafka import IsolationLevel

    from varve.cli.kafka_topics import read_offsets

    specs = admin_api().OffsetSpec
    partitions = [(request.topic, number) for number in numbers]
    isolation = (
        IsolationLevel.READ_COMMITTED if request.committed else IsolationLevel.READ_UNCOMMITTED
    )
    first = read_offsets(client, admin, partitions, specs.earliest())
    ends = read_offsets(client, admin, partitions, specs.latest(), isolation_level=isolation)
    times = {}
    if start.kind is StartKind.TIME:
        spec = specs.for_timestamp(start.number)
        times = read_offsets(client, admin, partitions, spec)
    ranges = {}
    for partition in partitions:
        begin = _begin(request, start, first[partition], ends[partition], times.get(partition, -1))
        if start.kind is StartKind.OFFSET and not first[partition] <= begin <= ends[partition]:
            raise InvalidRequest(
                f"{request.topic}-{partition[1]} has offsets {first[partition]} to "
                f"{ends[partition]}; begin at one "
                f"of them, not at {begin}"
            )
        ranges[partition[1]] = (begin, ends[partition])
    return ranges


def _begin(request: ConsumeRequest, start: Start, first: int, end: int, by_time: int) -> int:
    if request.last is not None:
        return max(first, end - request.last)
    match start.kind:
        case StartKind.BEGINNING:
            return first
        case StartKind.END:
            return end
        case StartKind.OFFSET:
            return start.number
        case StartKind.TIME:
            return end if by_time < 0 else by_time


def _consumer_settings(request: ConsumeRequest) -> dict[str, Any]:
    """What the options say; the rest may be changed by -X and the client file."""
    defaults = {"group_id": "varve-cli", "isolation_level": "read_uncommitted"}
    required: dict[str, Any] = {
        "enable_auto_commit": False,
        "enable_auto_offset_store": False,
        "enable_partition_eof": True,
    }
    if request.group:
        required["group_id"] = request.group
        defaults["auto_offset_reset"] = "earliest"
    else:
        required["auto_offset_reset"] = "error"
    if request.committed:
        required["isolation_level"] = "read_committed"
    return {"defaults": defaults, **required}


class _Reading:
    """A consumer at work."""

    def __init__(self, client: KafkaClient, consumer: "Consumer", request: ConsumeRequest) -> None:
        self._client = client
        self._consumer = consumer
        self._request = request
        self._left = request.count
        self._idle_count = 0

    def read_ranges(
        self, ranges: dict[int, tuple[int, int]], idle: Callable[[], None]
    ) -> Iterator[KafkaRecord]:
        """Partitions that were chosen, from where to where."""
        from confluent_kafka import TopicPartition

        request = self._request
        ends = {number: end for number, (begin, end) in ranges.items() if begin < end}
        chosen = ranges if request.follow else ends
        if not chosen:
            return
        self._consumer.assign(
            [TopicPartition(request.topic, number, ranges[number][0]) for number in chosen]
        )
        while ends or request.follow:
            for message in self._poll(idle):
                number, offset = _place(message)
                is_end = self._is_end(message)
                is_past = not request.follow and offset >= ends.get(number, -1)
                if not is_end and not is_past:
                    yield _record(message)
                    if self._is_enough():
                        return
                if is_end or offset + 1 >= ends.get(number, -1):
                    ends.pop(number, None)

    def read_as_member(self, idle: Callable[[], None]) -> Iterator[KafkaRecord]:
        """What the group gives us, until every partition of ours is at its end."""
        request = self._request
        self._consumer.subscribe([request.topic])
        at_end: set[int] = set()
        empty_count = 0
        while True:
            messages = self._poll(idle)
            for message in messages:
                number, _ = _place(message)
                if self._is_end(message):
                    at_end.add(number)
                    continue
                at_end.discard(number)
                yield _record(message)
                self._consumer.store_offsets(message=message)
                if self._is_enough():
                    self._commit()
                    return
            if messages:
                self._commit()
            mine = {partition.partition for partition in self._consumer.assignment()}
            empty_count = 0 if messages or mine else empty_count + 1
            if not request.follow and mine and mine <= at_end:
                return
            if empty_count > _JOIN_POLLS and not request.follow:
                raise InvalidRequest(
                    f"group {request.group} gave this member no partition of {request.topic}: "
                    "others have them all (`varve group describe` shows who)"
                )

    def _poll(self, idle: Callable[[], None]) -> "list[Message[Any, Any]]":
        """What has come; raises where the broker is gone for long, unless more is waited for."""
        first = self._consumer.poll(_POLL_SECONDS)
        # Whatever else is here already; waiting for a full batch would hold the first one back.
        messages = [] if first is None else [first, *self._consumer.consume(_BATCH, 0)]
        self._idle_count = 0 if messages else self._idle_count + 1
        if messages:
            self._client.forget_failures()
            return messages
        idle()
        failure = self._client.find_failure()
        is_long = self._idle_count > _GONE_POLLS and not self._request.follow
        if failure is not None and (is_long or isinstance(failure, Denied)):
            raise failure
        return messages

    def _is_end(self, message: "Message[Any, Any]") -> bool:
        """Whether it tells of an end; raises where it tells of a failure."""
        from confluent_kafka import KafkaError

        error = message.error()
        if error is None:
            return False
        if error.code() == KafkaError._PARTITION_EOF:
            return True
        raise self._client.as_error(error, f"topic {self._request.topic}")

    def _is_enough(self) -> bool:
        if self._left is not None:
            self._left -= 1
        return self._left == 0

    def _commit(self) -> None:
        from confluent_kafka import KafkaError, KafkaException

        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._NO_OFFSET:
                what = f"group {self._request.group}"
                raise self._client.as_error(error.args[0], what) from error


def _place(message: "Message[Any, Any]") -> tuple[int, int]:
    number, offset = message.partition(), message.offset()
    return -1 if number is None else number, -1 if offset is None else offset


def _record(message: "Message[Any, Any]") -> KafkaRecord:
    number, offset = _place(message)
    _, timestamp = message.timestamp()
    headers: Any = message.headers() or []
    return KafkaRecord(
        message.topic() or "", number, offset, timestamp, message.key(), message.value(), headers
    )
