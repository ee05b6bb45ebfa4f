"""A member of a consumer group, as the coordinator knows it.

Invariant  never changed, only replaced: what is in the log and what is being written stand beside
           each other. Partitions to be given back are the member's until it no longer names them.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, Self

from varve.broker.groups.assignors import NO_PARTITIONS, Partitions

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2


class MemberState(IntEnum):
    """By Kafka's numbers."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It must give partitions back before it goes on to the next epoch."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that others still have."""
    UNKNOWN = 127
    """A log written by others may hold states that are not known here."""

    @classmethod
    def of(cls, number: int) -> "MemberState":
        return cls(number) if number in set(cls) else cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """Who it is, what it subscribes to, and how far it has come."""

    id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    epoch: int = JOIN_EPOCH
    previous_epoch: int = JOIN_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS
    """What it was asked to give back."""

    @property
    def has_left(self) -> bool:
        """Whether it is static, away, and keeps its place."""
        return self.epoch == STATIC_LEAVE_EPOCH

    @property
    def held(self) -> Partitions:
        """What nobody else may have."""
        return self.assigned | self.revoking

    @property
    def is_revoking(self) -> bool:
        """Whether it has partitions to give back; one that has left for a while has none."""
        return self.state is MemberState.UNREVOKED_PARTITIONS and bool(self.revoking)

    def is_revoking_as(self, other: Self) -> bool:
        """Whether it was asked for the same as `other`, so that its time goes on."""
        both = self.is_revoking and other.is_revoking
        return both and (self.epoch, self.revoking) == (other.epoch, other.revoking)

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    def leave_for_a_while(self) -> Self:
        """A static member goes; it has stopped to read."""
        return replace(self, epoch=STATIC_LEAVE_EPOCH, revoking=NO_PARTITIONS)

    def come_back_as(self, id: str) -> Self:
        """The static member is there again, perhaps in another process."""
        return replace(self, id=id, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
