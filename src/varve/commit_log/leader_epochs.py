"""The leader epochs of a log, each with its start offset.

Layout     a checkpoint file of lines `epoch start-offset`. docs/reference/formats/checkpoints.md
Invariant  epochs and start offsets both strictly ascend.
Crash      an outdated file is harmless: loading a log repeats both truncations.
Threads    changes hold the log's lock; readers need none, as the tuple of entries is replaced.
"""

from bisect import bisect_right
from operator import attrgetter
from typing import NamedTuple, Self

from varve.commit_log.offset_checkpoints import (
    INT32_MAX,
    INT64_MAX,
    decode_checkpoint,
    encode_checkpoint,
)
from varve.foundation.errors import InvalidRequest


class EpochEntry(NamedTuple):
    """The first offset written in an epoch."""

    epoch: int
    start_offset: int


class LeaderEpochs:
    """The leader epochs of one log; methods that change it return whether anything changed."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: tuple[EpochEntry, ...] = ()

    @classmethod
    def decode(
        cls, data: bytes | bytearray | memoryview, where: str = "leader-epoch-checkpoint"
    ) -> Self:
        """Decodes a checkpoint file; raises Corrupt naming file and line.

        Entries are assigned in turn, so one out of order drops those that contradict it.
        """
        epochs = cls()
        for line in decode_checkpoint(data, where):
            line.require_fields(2, "epoch start-offset")
            epoch = line.integer(0, at_least=0, at_most=INT32_MAX)
            epochs.assign(epoch, line.integer(1, at_least=0, at_most=INT64_MAX))
        return epochs

    def encode(self) -> bytes:
        return encode_checkpoint([f"{entry.epoch} {entry.start_offset}" for entry in self._entries])

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Records the start offset of an epoch; drops entries that contradict it.

        False when the epoch is the latest and already starts there or before.
        """
        if epoch < 0 or start_offset < 0:
            raise InvalidRequest(
                f"leader epoch {epoch} at offset {start_offset}: neither may be negative"
            )
        entries = self._entries
        if entries:
            latest = entries[-1]
            if latest.epoch == epoch and latest.start_offset <= start_offset:
                return False
        kept = len(entries)
        # An entry contradicts this one unless both its epoch and its offset are lower.
        while kept and not (
            entries[kept - 1].epoch < epoch and entries[kept - 1].start_offset < start_offset
        ):
            kept -= 1
        self._entries = (*entries[:kept], EpochEntry(epoch, start_offset))
        return True

    def truncate_from_end(self, offset: int) -> bool:
        """Drops the epochs that begin at or after the offset."""
        return self._replace(tuple(e for e in self._entries if e.start_offset < offset))

    def truncate_from_start(self, offset: int) -> bool:
        """Drops earlier epochs: the one in force at the offset now starts there."""
        entries = self._entries
        above = bisect_right(entries, offset, key=attrgetter("start_offset"))
        if not above:
            return False
        return self._replace((EpochEntry(entries[above - 1].epoch, offset), *entries[above:]))

    def _replace(self, entries: tuple[EpochEntry, ...]) -> bool:
        is_changed = entries != self._entries
        self._entries = entries
        return is_changed

    def end_offset_for(self, epoch: int, end_offset: int) -> tuple[int, int] | None:
        """The (epoch, end offset) of an OffsetForLeaderEpoch response, KIP-101 and KIP-279.

        `end_offset` is the log end offset. None when the epoch is negative or above the latest.
        """
        entries = self._entries
        if epoch < 0 or not entries or epoch > entries[-1].epoch:
            return None
        if epoch == entries[-1].epoch:
            return epoch, end_offset
        above = bisect_right(entries, epoch, key=attrgetter("epoch"))
        floor_epoch = entries[above - 1].epoch if above else epoch
        return floor_epoch, entries[above].start_offset

    def epoch_for_offset(self, offset: int) -> int | None:
        """The epoch in force at an offset; None before the first entry."""
        entries = self._entries
        above = bisect_right(entries, offset, key=attrgetter("start_offset"))
        return entries[above - 1].epoch if above else None

    @property
    def latest(self) -> EpochEntry | None:
        entries = self._entries
        return entries[-1] if entries else None

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return self._entries
