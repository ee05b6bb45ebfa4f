"""A broker with a topic that takes no duplicates, and batches for it."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from tests.support.broker_kit import BrokerKit
from tests.support.data_requests import produce
from tests.support.log_bench import NOW_MS
from varve.commit_log import Isolation, Log
from varve.disk import FileSystem
from varve.kernels.batch_layout import LENGTH_OVERHEAD
from varve.records import Batch, Codec, Headers, Record, build_batch
from varve.records.batch_format import PREFIX

TOPIC: Final = "orders"
WINDOW_MS: Final = 1_000
LATENESS_MS: Final = 2_000
BY_KEY: Final = {
    "varve.dedup.by": "key",
    "varve.dedup.window.ms": str(WINDOW_MS),
    "varve.dedup.lateness.ms": str(LATENESS_MS),
}

Sent = tuple[str, int]
"""A key, and a time that counts from the clock's beginning."""


def batch_of(
    *sent: Sent, headers: Headers = (), value: bytes = b"v", codec: Codec = Codec.NONE, **more: Any
) -> bytes:
    """A batch of records with these keys and times; an empty key is none, -1 is no time."""
    records = [
        Record(
            key.encode() or None,
            value,
            headers=headers,
            timestamp=-1 if time == -1 else NOW_MS + time,
        )
        for key, time in sent
    ]
    return build_batch(records, codec=codec, **more)


def send(kit: BrokerKit, *sent: Sent, topic: str = TOPIC, **more: Any) -> tuple[int, int]:
    """Error code and base offset that a batch was answered with."""
    found = produce(kit, topic, batch_of(*sent, **more))
    return found.error_code, found.base_offset


def make_topic(kit: BrokerKit, settings: Mapping[str, str] = BY_KEY, **more: Any) -> Log:
    kit.make_topic(TOPIC, settings={**settings}, **more)
    return kit.log(TOPIC)


def batches_in(log: Log) -> list[Batch]:
    """All batches as they are stored."""
    found, offset = [], log.log_start_offset
    while offset < log.end_offset:
        read = log.read(start_offset=offset, isolation=Isolation.LOG_END)
        data, position = bytes(read.data), 0
        while position < len(data):
            found.append(Batch(data, position=position))
            position += PREFIX.unpack_from(data, position)[1] + LENGTH_OVERHEAD
        offset = read.next_offset
    return found


def records_in(log: Log) -> list[tuple[int, str, int]]:
    """Offset, key and time of each record, as `Sent` has them."""
    return [
        (
            int(columns.offsets[at]),
            (columns.key(at) or b"").decode(),
            int(columns.timestamps[at]) - NOW_MS if columns.timestamps[at] >= 0 else -1,
        )
        for columns in (batch.columns() for batch in batches_in(log))
        for at in range(len(columns))
    ]


def keys_in(log: Log) -> list[str]:
    return [key for _, key, _ in records_in(log)]


def states_on(fs: FileSystem, root: str = "data.dedup") -> Iterable[str]:
    """What is on disk of ids."""
    return fs.names(root) if fs.exists(root) else []
