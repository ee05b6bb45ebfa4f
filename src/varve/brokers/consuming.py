"""Records of a broker's topic: a range of offsets, or everything as it arrives.

Invariant  without `is_following` the end is the end offset at the start, however much is written
           meanwhile. A group's offsets are committed for records that were returned.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from varve.brokers.client import BrokerClient, admin_api
from varve.brokers.errors import Denied
from varve.brokers.topics import find_topic, read_offsets
from varve.foundation.errors import InvalidRequest, NotFound, OffsetOutOfRange
from varve.foundation.position import BEGINNING, END, PositionKind, ReadPosition
from varve.foundation.topic_records import StoredRecord

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

_POLL_SECONDS: Final = 0.2
_POLL_RECORDS_MAX: Final = 500
_JOIN_POLLS_MAX: Final = 150
"""Empty polls without an assigned partition before joining the group counts as failed."""

_LOST_POLLS_MAX: Final = 25
"""Empty polls while no broker responds before it counts as lost."""


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    """Which records; `start`, `end`, `last` and `partition` are not for groups."""

    topic: str
    partition: int | None = None
    start: ReadPosition = BEGINNING
    end: ReadPosition = END
    last: int | None = None
    limit: int | None = None
    is_following: bool = False
    group: str | None = None
    is_committed: bool = False


def consume(
    client: BrokerClient, request: ConsumeRequest, idle: Callable[[], None]
) -> Iterator[StoredRecord]:
    """The records; `idle` is called whenever no more have arrived."""
    selected = _select_partitions(client, request)
    if request.limit == 0:
        return
    consumer = client.consumer(**_consumer_settings(request))
    try:
        reading = _Reading(client, consumer, request)
        if request.group is None:
            ranges = _find_ranges(client, request, selected)
            yield from reading.read_ranges(ranges, idle)
        else:
            yield from reading.read_as_member(idle)
    finally:
        consumer.close()


def read_in_turn(client: BrokerClient, request: ConsumeRequest) -> Iterator[StoredRecord]:
    """The records of one partition after the other, to the end offsets at the time of the call."""
    ranges = _find_ranges(client, request, _select_partitions(client, request))
    return _read_ranges_in_turn(client, request, ranges)


def _read_ranges_in_turn(
    client: BrokerClient, request: ConsumeRequest, ranges: dict[int, tuple[int, int]]
) -> Iterator[StoredRecord]:
    if request.limit == 0 or all(start >= end for start, end in ranges.values()):
        return
    consumer = client.consumer(**_consumer_settings(request))
    try:
        reading = _Reading(client, consumer, request)
        for number, bounds in ranges.items():
            yield from reading.read_ranges({number: bounds}, _do_nothing)
            if reading.is_done:
                return
    finally:
        consumer.close()


def _do_nothing() -> None:
    """The idle callback of a read that ends by itself."""


def _select_partitions(client: BrokerClient, request: ConsumeRequest) -> list[int]:
    """The partitions to read; raises NotFound, and InvalidRequest for an offset in several."""
    start = request.start
    described = find_topic(client, request.topic)
    numbers = sorted(partition.id for partition in described.partitions)
    if request.partition is not None and request.partition not in numbers:
        raise NotFound(
            f"topic {request.topic} has no partition {request.partition}; it has 0 to "
            f"{len(numbers) - 1}"
        )
    selected = numbers if request.partition is None else [request.partition]
    if PositionKind.OFFSET in (start.kind, request.end.kind) and len(selected) > 1:
        raise InvalidRequest(
            f"topic {request.topic} has {len(selected)} partitions, each with its own offsets; "
            "name one with --partition"
        )
    return selected


def _find_ranges(
    client: BrokerClient, request: ConsumeRequest, numbers: list[int]
) -> dict[int, tuple[int, int]]:
    """Start and end offset by partition, as of now."""
    from confluent_kafka import IsolationLevel

    specs = admin_api().OffsetSpec
    partitions = [(request.topic, number) for number in numbers]
    isolation = (
        IsolationLevel.READ_COMMITTED if request.is_committed else IsolationLevel.READ_UNCOMMITTED
    )
    firsts = read_offsets(client, partitions, specs.earliest())
    ends = read_offsets(client, partitions, specs.latest(), isolation_level=isolation)
    lasts = read_offsets(client, partitions, specs.latest()) if request.is_committed else ends
    times = {
        position: read_offsets(client, partitions, specs.for_timestamp(position.number))
        for position in (request.start, request.end)
        if position.kind is PositionKind.TIME
    }

    ranges = {}
    for partition in partitions:
        first, end = firsts[partition], ends[partition]
        start, limit = (
            position.resolve(first=first, end=end, at_time=times.get(position, {}).get(partition))
            for position in (request.start, request.end)
        )
        if request.last is not None:
            start = max(first, end - request.last)
        if request.start.kind is PositionKind.OFFSET and not (first <= start <= lasts[partition]):
            raise OffsetOutOfRange(
                f"{request.topic}-{partition[1]} begins at offset {first}, and its records "
                "end before "
                f"offset {lasts[partition]}; start there, not at {start}"
            )
        ranges[partition[1]] = (start, min(end, limit))
    return ranges


def _consumer_settings(request: ConsumeRequest) -> dict[str, Any]:
    """Settings of librdkafka; client settings may change the defaults, not the rest."""
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
    if request.is_committed:
        required["isolation_level"] = "read_committed"
    return {"defaults": defaults, **required}


class _Reading:
    """One consumer, and how many records it may still return."""

    def __init__(self, client: BrokerClient, consumer: "Consumer", request: ConsumeRequest) -> None:
        self._client = client
        self._consumer = consumer
        self._request = request
        self._remaining_count = request.limit
        self._idle_count = 0

    def read_ranges(
        self, ranges: dict[int, tuple[int, int]], idle: Callable[[], None]
    ) -> Iterator[StoredRecord]:
        """Selected partitions, each from its start to its end offset."""
        from confluent_kafka import TopicPartition

        request = self._request
        ends = {number: end for number, (begin, end) in ranges.items() if begin < end}
        chosen = ranges if request.is_following else ends
        if not chosen:
            return
        self._consumer.assign(
            [TopicPartition(request.topic, number, ranges[number][0]) for number in chosen]
        )
        while ends or request.is_following:
            for message in self._poll(idle):
                number, offset = _partition_and_offset(message)
                is_end = self._is_end(message)
                is_past = not request.is_following and offset >= ends.get(number, -1)
                if not is_end and not is_past:
                    yield _to_record(message)
                    if self._is_enough():
                        return
                if is_end or offset + 1 >= ends.get(number, -1):
                    ends.pop(number, None)

    def read_as_member(self, idle: Callable[[], None]) -> Iterator[StoredRecord]:
        """The partitions that the group assigns, until each is at its end."""
        request = self._request
        self._consumer.subscribe([request.topic])
        at_end: set[int] = set()
        empty_count = 0
        while True:
            messages = self._poll(idle)
            for message in messages:
                number, _ = _partition_and_offset(message)
                if self._is_end(message):
                    at_end.add(number)
                    continue
                at_end.discard(number)
                yield _to_record(message)
                self._consumer.store_offsets(message=message)
                if self._is_enough():
                    self._commit()
                    return
            if messages:
                self._commit()
            mine = {partition.partition for partition in self._consumer.assignment()}
            empty_count = 0 if messages or mine else empty_count + 1
            if not request.is_following and mine and mine <= at_end:
                return
            if empty_count > _JOIN_POLLS_MAX and not request.is_following:
                raise InvalidRequest(
                    f"group {request.group} gave this member no partition of {request.topic}: "
                    "other members have them all (`varve group describe` lists them)"
                )

    def _poll(self, idle: Callable[[], None]) -> "list[Message[Any, Any]]":
        """Messages that arrived; raises if the broker is lost, except while following."""
        first = self._consumer.poll(_POLL_SECONDS)
        # Take what has arrived already; waiting for a full batch would delay the first record.
        messages = [] if first is None else [first, *self._consumer.consume(_POLL_RECORDS_MAX, 0)]
        messages = [message for message in messages if not self._is_about_unused_group(message)]
        self._idle_count = 0 if messages else self._idle_count + 1
        if messages:
            self._client.forget_failures()
            return messages
        idle()
        failure = self._client.find_failure()
        is_long = self._idle_count > _LOST_POLLS_MAX and not self._request.is_following
        if failure is not None and (is_long or isinstance(failure, Denied)):
            raise failure
        return messages

    def _is_about_unused_group(self, message: "Message[Any, Any]") -> bool:
        """librdkafka looks up the coordinator of its group.id, which reads of ranges do not use."""
        from confluent_kafka import KafkaError

        error = message.error()
        return (
            self._request.group is None
            and error is not None
            and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
        )

    def _is_end(self, message: "Message[Any, Any]") -> bool:
        """Whether the message marks the end of a partition; raises for an error."""
        from confluent_kafka import KafkaError

        error = message.error()
        if error is None:
            return False
        if error.code() == KafkaError._PARTITION_EOF:
            return True
        raise self._client.as_error(error, f"topic {self._request.topic}")

    @property
    def is_done(self) -> bool:
        return self._remaining_count == 0

    def _is_enough(self) -> bool:
        if self._remaining_count is not None:
            self._remaining_count -= 1
        return self.is_done

    def _commit(self) -> None:
        from confluent_kafka import KafkaError, KafkaException

        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._NO_OFFSET:
                what = f"group {self._request.group}"
                raise self._client.as_error(error.args[0], what) from error


def _partition_and_offset(message: "Message[Any, Any]") -> tuple[int, int]:
    number, offset = message.partition(), message.offset()
    return -1 if number is None else number, -1 if offset is None else offset


def _to_record(message: "Message[Any, Any]") -> StoredRecord:
    number, offset = _partition_and_offset(message)
    _, timestamp = message.timestamp()
    headers: Any = message.headers() or ()
    return StoredRecord(number, offset, timestamp, message.key(), message.value(), tuple(headers))
