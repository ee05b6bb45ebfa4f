"""Packs a stream of records into big batches, partition by partition.

Invariant  records of one partition are appended in the order they came; no batch of several
           records exceeds the topic's largest batch, whatever its bytes compress to.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from varve.commit_log import LogSettings
from varve.commit_log.batch_validator import stored_codec
from varve.embedded.partition import Partition
from varve.foundation.errors import InvalidRequest
from varve.records import HEADER_BYTES, Codec, Record, build_batch

BATCH_BYTES: Final = 1 << 20

# The most that the numbers of a record, and those of a header, take besides their bytes.
_RECORD_OVERHEAD: Final = 40
_HEADER_OVERHEAD: Final = 10
# What bytes that do not compress may grow by: a share for block headers, and the frame's own.
_EXPANSION_SHARE: Final = 256
_EXPANSION_BYTES: Final = 128


@dataclass(frozen=True, slots=True)
class AppendSummary:
    """What `append_many` did; `end_offsets` gives, by partition, the offset after the last."""

    record_count: int
    batch_count: int
    end_offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Packaging:
    """How batches are made: codec, level, and how many bytes of records go into one."""

    codec: Codec
    level: int | None
    payload_bytes: int


def packaging_for(settings: LogSettings, codec: str | Codec) -> Packaging:
    """The topic's own codec where it has one, else the asked one."""
    limit = min(settings.max_message_bytes, settings.segment_bytes, BATCH_BYTES)
    payload = limit - HEADER_BYTES - limit // _EXPANSION_SHARE - _EXPANSION_BYTES
    chosen, level = stored_codec(settings)
    return Packaging(parse_codec(codec) if chosen is None else chosen, level, max(payload, 1))


def parse_codec(asked: str | Codec) -> Codec:
    """A codec by its name, small or capital."""
    if isinstance(asked, Codec):
        return asked
    try:
        return Codec[asked.upper()]
    except KeyError:
        names = ", ".join(codec.name.lower() for codec in Codec)
        raise InvalidRequest(f"codec {asked!r} is unknown; use one of {names}") from None


@dataclass(slots=True)
class _Open:
    records: list[Record] = field(default_factory=list)
    size: int = 0


class Packer:
    """Collects records and appends a batch whenever one is full."""

    def __init__(self, partition: Callable[[int], Partition], packaging: Packaging) -> None:
        self._partition = partition
        self._packaging = packaging
        self._open: dict[int, _Open] = {}
        self._end_offsets: dict[int, int] = {}
        self._record_count = 0
        self._batch_count = 0

    def add(self, number: int, record: Record) -> bool:
        """Takes a record; True when a batch of its partition was appended before it."""
        size = _size_bound(record)
        pending = self._open.setdefault(number, _Open())
        was_full = bool(pending.records) and pending.size + size > self._packaging.payload_bytes
        if was_full:
            self._append(number, pending)
        pending.records.append(record)
        pending.size += size
        return was_full

    def finish(self) -> AppendSummary:
        """Appends what is left."""
        for number, pending in self._open.items():
            if pending.records:
                self._append(number, pending)
        return AppendSummary(self._record_count, self._batch_count, dict(self._end_offsets))

    def _append(self, number: int, pending: _Open) -> None:
        records = pending.records
        pending.records, pending.size = [], 0
        batch = build_batch(records, codec=self._packaging.codec, level=self._packaging.level)
        result = self._partition(number).append_batch(batch)
        self._end_offsets[number] = result.last_offset + 1
        self._record_count += len(records)
        self._batch_count += 1


def _size_bound(record: Record) -> int:
    """At most so many bytes does the record take."""
    size = _RECORD_OVERHEAD
    if record.key is not None:
        size += len(record.key)
    if record.value is not None:
        size += len(record.value)
    for name, value in record.headers:
        size += 4 * len(name) + _HEADER_OVERHEAD + (0 if value is None else len(value))
    return size
