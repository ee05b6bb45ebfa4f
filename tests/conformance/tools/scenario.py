"""What the golden broker is told to write: every shape of batch, topic and transaction.

Record contents are drawn from a fixed seed; wall-clock times are the broker's own, except where a
topic tests given timestamps.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.tools.program import pause
from tests.conformance.tools.shell import JavaShell, to_text

SEED = 20_241_015
GIVEN_TIME_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CLEANING_SECONDS = 60.0
POLL_SECONDS = 0.2
KEPT_FOR_EVER = {"retention.ms": "-1"}

# A record as the client shell takes it: JSON made here, read there.
SentRecord = dict[str, object]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the scenario and what fills it, in one or two visits with a restart between."""

    name: str
    configs: Mapping[str, str]
    first_visit: Callable[["Writer"], None]
    second_visit: Callable[["Writer"], None] | None = None


class Writer:
    """Fills one topic through the Java clients."""

    def __init__(self, clients: JavaShell, topic: str, data: Path) -> None:
        self._clients = clients
        self.topic = topic
        self.data = data
        self.random = random.Random(f"{SEED} {topic}")

    def send(self, producer: str, records: Sequence[SentRecord]) -> None:
        """One batch."""
        self._clients.call(
            "send", producer=self._name(producer), topic=self.topic, records=list(records)
        )

    def open(self, producer: str, **configs: str) -> str:
        """Opens a producer; names are private to the topic. Double underscores stand for dots."""
        dotted = {name.replace("__", "."): value for name, value in configs.items()}
        self._clients.call("open_producer", producer=self._name(producer), configs=dotted)
        return producer

    def open_plain(self, producer: str, codec: str = "none") -> str:
        """A producer without id: no sequences in its batches."""
        return self.open(producer, enable__idempotence="false", compression__type=codec, acks="all")

    def open_idempotent(self, producer: str, codec: str = "none") -> str:
        """A producer with id and sequences."""
        return self.open(producer, enable__idempotence="true", compression__type=codec)

    def open_transactional(self, producer: str, codec: str = "none") -> str:
        """A producer of transactions that the coordinator leaves alone for a quarter of an hour."""
        return self.open(
            producer,
            transactional__id=self._name(producer),
            transaction__timeout__ms="900000",
            compression__type=codec,
        )

    def begin(self, producer: str) -> None:
        self._clients.call("begin", producer=self._name(producer))

    def commit(self, producer: str) -> None:
        self._clients.call("commit", producer=self._name(producer))

    def abort(self, producer: str) -> None:
        self._clients.call("abort", producer=self._name(producer))

    def transaction(self, producer: str, records: Sequence[SentRecord], *, commit: bool) -> None:
        """A whole transaction of one batch."""
        self.begin(producer)
        self.send(producer, records)
        if commit:
            self.commit(producer)
        else:
            self.abort(producer)

    def delete_records(self, offset: int) -> None:
        self._clients.call("delete_records", topic=self.topic, offset=offset)

    def wait_until_cleaned(self) -> None:
        """Until the cleaner has passed everything below the active segment."""
        deadline = time.monotonic() + CLEANING_SECONDS
        while time.monotonic() < deadline:
            active = max(int(p.stem) for p in (self.data / f"{self.topic}-0").glob("*.log"))
            if self._first_dirty_offset() == active:
                return
            pause(POLL_SECONDS)
        raise TimeoutError(f"{self.topic} was not cleaned within {CLEANING_SECONDS} s")

    def _first_dirty_offset(self) -> int | None:
        for line in (self.data / "cleaner-offset-checkpoint").read_text().splitlines()[2:]:
            topic, partition, offset = line.split()
            if (topic, partition) == (self.topic, "0"):
                return int(offset)
        return None

    def _name(self, producer: str) -> str:
        return f"{self.topic}.{producer}"


def record(
    key: bytes | None,
    value: bytes | None,
    *,
    timestamp: int | None = None,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> SentRecord:
    """A record for the client shell."""
    sent: SentRecord = {
        "key": to_text(key),
        "value": to_text(value),
        "headers": [[name, to_text(content)] for name, content in headers],
    }
    if timestamp is not None:
        sent["timestamp"] = timestamp
    return sent


def edge_records() -> list[SentRecord]:
    """Null against empty, headers of every kind, bytes that are no text, times out of order."""
    at = GIVEN_TIME_MS
    return [
        record(None, None, timestamp=at + 50),
        record(b"", b"", timestamp=at),
        record(b"key", None, timestamp=at + 9_000_000),
        record(None, b"value", timestamp=0),
        record(b"\x00\xff\xfe", b"\x80" * 5, timestamp=at + 1),
        record(
            b"headers",
            b"v",
            timestamp=at + 2,
            headers=[("a", b"1"), ("a", b"2"), ("null", None), ("empty", b""), ("", b"x")],
        ),
        record(b"text", "häder ✓".encode(), timestamp=at + 3, headers=[("ключ ✓", b"\x00\xff")]),
    ]


def numbered(writer: Writer, count: int, size: int = 40) -> list[SentRecord]:
    """Records with keys of ten kinds and values of compressible text."""
    return [
        record(
            b"key-%d" % writer.random.randrange(10),
            (b"value %06d " % writer.random.randrange(1_000_000) * size)[:size],
        )
        for _ in range(count)
    ]


def fill_codecs(writer: Writer) -> None:
    for codec in CODECS:
        producer = writer.open_plain(f"plain-{codec}", codec)
        writer.send(producer, edge_records())
        writer.send(producer, numbered(writer, 30))
        writer.send(producer, [record(b"noise", writer.random.randbytes(3_000))])
        if codec != "none":
            writer.send(producer, [record(b"large", b"many blocks of one frame. " * 8_000)])
    for codec in CODECS:
        writer.send(f"plain-{codec}", [record(b"single", codec.encode(), timestamp=GIVEN_TIME_MS)])


def fill_append_time(writer: Writer) -> None:
    for codec in ("none", "zstd"):
        producer = writer.open_plain(f"plain-{codec}", codec)
        writer.send(producer, edge_records())
        pause(0.02)
        for _ in range(6):
            writer.send(producer, numbered(writer, 4))
            pause(0.01)


def fill_recompressed(writer: Writer) -> None:
    for codec in CODECS:
        writer.send(writer.open_plain(f"plain-{codec}", codec), numbered(writer, 12))


def fill_idempotent(writer: Writer) -> None:
    producers = [writer.open_idempotent("one"), writer.open_idempotent("two", "lz4")]
    for turn in range(24):
        writer.send(producers[turn % 2], numbered(writer, 1 + turn % 5))


def fill_idempotent_again(writer: Writer) -> None:
    producer = writer.open_idempotent("three", "zstd")
    for _ in range(6):
        writer.send(producer, numbered(writer, 3))


def fill_transactions(writer: Writer) -> None:
    plain = writer.open_plain("plain")
    one, two = writer.open_transactional("one"), writer.open_transactional("two", "gzip")
    writer.transaction(one, numbered(writer, 3), commit=True)
    writer.begin(one)
    writer.send(one, numbered(writer, 3))
    writer.begin(two)
    writer.send(two, numbered(writer, 2))
    writer.abort(one)
    writer.send(plain, numbered(writer, 2))
    writer.commit(two)
    for turn in range(6):
        writer.transaction(one, numbered(writer, 4), commit=turn % 3 == 0)
        writer.transaction(two, numbered(writer, 2), commit=turn % 2 == 0)
        writer.send(plain, numbered(writer, 1))


def leave_transaction_open(writer: Writer) -> None:
    plain = writer.open_plain("plain-again")
    before, left = writer.open_transactional("before"), writer.open_transactional("left")
    writer.begin(before)
    writer.send(before, numbered(writer, 1))
    writer.begin(left)
    writer.send(left, numbered(writer, 2))
    writer.send(plain, numbered(writer, 2))
    writer.commit(before)
    writer.transaction(before, numbered(writer, 2), commit=False)
    writer.send(left, numbered(writer, 1))
    writer.send(plain, numbered(writer, 1))


def keyed(keys: str, value: bytes | None) -> list[SentRecord]:
    return [record(key.encode(), value) for key in keys]


def fill_compacted(writer: Writer) -> None:
    """Leaves tombstones with a horizon, a batch emptied but kept, markers without data."""
    one, two = writer.open_idempotent("one"), writer.open_idempotent("two", "zstd")
    atomic = writer.open_transactional("atomic")
    writer.send(one, keyed("abcdefgh", b"first value of each key"))
    writer.transaction(atomic, keyed("ij", b"aborted, never seen again"), commit=False)
    writer.transaction(atomic, keyed("kl", b"committed, then superseded"), commit=True)
    for turn in range(6):
        writer.send(two, keyed("abcdklm", b"turn %d" % turn + b" and some more text" * 4))
    writer.send(two, keyed("efm", None))
    writer.send(one, keyed("xyz", b"the last batch of producer one"))
    writer.send(two, keyed("xyz", b"supersedes the last batch of producer one"))
    roll_out(writer, two)
    writer.wait_until_cleaned()


def fill_purged(writer: Writer) -> None:
    """Tombstones and markers whose horizon has passed are gone after a second cleaning."""
    fill_compacted(writer)
    for turn in range(3):
        pause(0.5)
        writer.send("two", keyed("pq", b"round %d" % turn + b" of further text" * 8))
        roll_out(writer, "two")
        writer.wait_until_cleaned()


def roll_out(writer: Writer, producer: str) -> None:
    """Fills the active segment so that what came before may be cleaned."""
    for turn in range(4):
        writer.send(producer, keyed("z", b"filler %d " % turn * 30))


def fill_trimmed(writer: Writer) -> None:
    producer = writer.open_idempotent("one")
    for turn in range(20):
        writer.send(producer, numbered(writer, 1 + turn % 4))
    writer.delete_records(23)


def trim_again(writer: Writer) -> None:
    writer.delete_records(40)


def fill_preallocated(writer: Writer) -> None:
    producer = writer.open_plain("plain", "snappy")
    for _ in range(14):
        writer.send(producer, numbered(writer, 5))


COMPACTED = {
    **KEPT_FOR_EVER,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "internal.segment.bytes": "900",
    "index.interval.bytes": "200",
    "delete.retention.ms": "86400000",
}


def topics(*, file_delete_delay_ms: int) -> Iterator[Topic]:
    """The topics of a golden directory; a long delay leaves `.deleted` files in it."""
    small = {**KEPT_FOR_EVER, "internal.segment.bytes": "2000", "index.interval.bytes": "300"}
    delayed = {"file.delete.delay.ms": str(file_delete_delay_ms)}
    yield Topic(
        "codecs",
        {**KEPT_FOR_EVER, "internal.segment.bytes": "24000", "index.interval.bytes": "1024"},
        fill_codecs,
    )
    append_time = {**small, "message.timestamp.type": "LogAppendTime"}
    yield Topic("append-time", append_time, fill_append_time)
    yield Topic("recompressed", {**small, "compression.type": "lz4"}, fill_recompressed)
    yield Topic("idempotent", small, fill_idempotent, fill_idempotent_again)
    transactions = {**small, "internal.segment.bytes": "1200"}
    yield Topic("transactions", transactions, fill_transactions, leave_transaction_open)
    yield Topic("compacted", {**COMPACTED, **delayed}, fill_compacted)
    purged = {**COMPACTED, "delete.retention.ms": "100", "file.delete.delay.ms": "0"}
    yield Topic("purged", purged, fill_purged)
    trimmed = {**small, "internal.segment.bytes": "700", **delayed}
    yield Topic("trimmed", trimmed, fill_trimmed, trim_again)
    preallocated = {**small, "preallocate": "true", "internal.segment.bytes": "2000"}
    yield Topic("preallocated", preallocated, fill_preallocated, fill_preallocated)
