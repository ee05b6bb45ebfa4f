"""Positions of a reader in a partition, with a mark that reveals a changed history.

A log may lose its end, by a power loss, an unclean leader election or a restore, and grow again
with other records at the same offsets. A position therefore names the batch before it.

Layout     dedup-progress.md, snapshot.md and table.md in docs/reference/formats
Invariant  a batch that compaction or erasure rewrote still matches its mark: a rewrite keeps
           offsets and leader epoch, and leaves fewer records or a delete horizon. Only offsets
           and leader epoch of such a batch are compared.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple, Self

from varve.foundation.errors import OffsetOutOfRange
from varve.foundation.settings import LONG_MAX
from varve.records import BatchHeader, CommittedBatches

_CRC_MAX: Final = (1 << 32) - 1
_EPOCH_MAX: Final = (1 << 31) - 1


class LogTruncated(OffsetOutOfRange):
    """The partition lost records that were read before: data derived from them is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryMark:
    """The header fields that identify a batch; `crc` is the stored checksum."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int

    @classmethod
    def of(cls, header: BatchHeader) -> Self:
        return cls(
            base_offset=header.base_offset,
            last_offset=header.last_offset,
            leader_epoch=header.partition_leader_epoch,
            crc=header.crc,
        )

    def is_in_front_of(self, offset: int) -> bool:
        """Whether the batch holds the offset before this one."""
        return self.base_offset < offset <= self.last_offset + 1

    def find_break(self, header: BatchHeader) -> str | None:
        """How the batch now at these offsets differs from this one; None if it does not."""
        current = HistoryMark.of(header)
        span = header.last_offset - header.base_offset + 1
        is_rewritten = header.has_delete_horizon or header.records_count < span
        if current == self or (is_rewritten and current._identity == self._identity):
            return None
        return f"the batch was {self}, and is {current} now"

    @property
    def _identity(self) -> tuple[int, int, int]:
        return self.base_offset, self.last_offset, self.leader_epoch

    def __str__(self) -> str:
        return (
            f"{self.base_offset} to {self.last_offset} of epoch {self.leader_epoch} with checksum "
            f"{self.crc:08x}"
        )

    def to_json(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """Raises ValueError, KeyError or TypeError for anything else."""
        base_offset = _get_int(entry, "base_offset", 0, LONG_MAX)
        return cls(
            base_offset=base_offset,
            last_offset=_get_int(entry, "last_offset", base_offset, LONG_MAX),
            leader_epoch=_get_int(entry, "leader_epoch", -1, _EPOCH_MAX),
            crc=_get_int(entry, "crc", 0, _CRC_MAX),
        )


class Position(NamedTuple):
    """The next offset to read; without a mark only the bounds of the log can be checked."""

    offset: int
    mark: HistoryMark | None = None

    @classmethod
    def after(cls, fetched: CommittedBatches) -> Self:
        """The position after all fetched batches."""
        header = fetched.last_header
        return cls(fetched.next_offset, None if header is None else HistoryMark.of(header))

    @property
    def leader_epoch(self) -> int:
        """The epoch of the batch before the offset, -1 if it is unknown."""
        mark = self.mark
        return mark.leader_epoch if mark and mark.is_in_front_of(self.offset) else -1


def _get_int(entry: Mapping[str, Any], name: str, low: int, high: int) -> int:
    value = entry[name]
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} of a mark is {value!r:.80}, not a number from {low} to {high}")
    return value
