"""What the clients were told: the truth that the log is compared with.

Threads    each part is changed by one worker; the driver reads it, at the end or with a lock.
"""

import threading
from dataclasses import dataclass, field

Partition = tuple[str, int]


def number_of(value: bytes | None) -> int:
    """What a value begins with."""
    return int((value or b"").split(b":", 1)[0])


@dataclass(slots=True)
class Sequence:
    """Records 0, 1, 2, ... of one partition that has one writer."""

    sent: int = 0
    acknowledged: int = 0
    """All below were acknowledged, or are uncertain."""
    uncertain: set[int] = field(default_factory=set)
    """A client gave up on them: they may be there."""


@dataclass(slots=True)
class Keys:
    """The latest of each key of one partition; None is a tombstone."""

    latest: dict[bytes, int | None] = field(default_factory=dict)
    uncertain: dict[bytes, set[int | None]] = field(default_factory=dict)
    """What a client gave up on since the latest."""
    sent: int = 0


@dataclass(slots=True)
class Transactions:
    """Numbers of the transactions of one transactional id, and the copies of each partition."""

    copies: dict[int, int] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    uncertain: set[int] = field(default_factory=set)
    """The end of these was not told: they are wholly there, or not at all."""
    partial: dict[int, dict[Partition, int]] = field(default_factory=dict)
    """A client said that it had committed these, and that it had given up on some of their records:
    how many were acknowledged. Those are there, or none are.
    """


class GroupModel:
    """What the members of a group have read, and which commits were acknowledged."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: dict[int, int] = {}  # guarded by _lock; all below was read
        self._beyond: dict[int, set[int]] = {}  # guarded by _lock
        self.acknowledged: dict[int, int] = {}  # guarded by _lock
        self.read_count = 0  # guarded by _lock

    def note_read(self, partition: int, offset: int) -> None:
        with self._lock:
            self.read_count += 1
            end = self._ends.get(partition, 0)
            if offset < end:
                return
            beyond = self._beyond.setdefault(partition, set())
            beyond.add(offset)
            while end in beyond:
                beyond.remove(end)
                end += 1
            self._ends[partition] = end

    def note_commit(self, ends: dict[int, int]) -> None:
        with self._lock:
            for partition, end in ends.items():
                self.acknowledged[partition] = max(end, self.acknowledged.get(partition, 0))

    def read_end(self, partition: int) -> int:
        """All below was read by a member."""
        with self._lock:
            return self._ends.get(partition, 0)

    def has_skipped(self, partition: int) -> bool:
        """Whether records were read behind one that nobody has read."""
        with self._lock:
            return bool(self._beyond.get(partition))
