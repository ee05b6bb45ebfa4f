"""Balances that add up, for tests that put them on record."""

from varve.cleaning.removals.removal import Reason, Removal, RemovalKind, SegmentSummary
from varve.commit_log import TopicPartition

PARTITION = TopicPartition("orders", 0)
DIGEST = "0123456789abcdef" * 2


def make_compaction(id: int = 1, *, rule: str = "cleanup.policy=compact") -> Removal:
    """Two segments of 7 and 5 records become one of 8."""
    return Removal(
        id=id,
        partition=PARTITION,
        kind=RemovalKind.COMPACTION,
        at_ms=1_700_000_000_000,
        inputs=(SegmentSummary(0, 10, 700, 7), SegmentSummary(10, 20, 500, 5, 77)),
        outputs=(SegmentSummary(0, 20, 800, 8, 99),),
        records={Reason.KEPT: 8, Reason.SUPERSEDED: 3, Reason.TOMBSTONE_EXPIRED: 1},
        bytes={Reason.KEPT: 600, Reason.SUPERSEDED: 210, Reason.TOMBSTONE_EXPIRED: 9},
        keys_before=DIGEST,
        keys_after=DIGEST,
        rule=rule,
        end_offset=20,
    )


def make_expiry(id: int = 1, *, rule: str = "retention.ms=1000") -> Removal:
    """A segment of 7 records goes."""
    return Removal(
        id=id,
        partition=PARTITION,
        kind=RemovalKind.EXPIRY,
        at_ms=1_700_000_000_000,
        inputs=(SegmentSummary(0, 10, 700, 7),),
        outputs=(),
        records={Reason.EXPIRED_TIME: 7},
        bytes={Reason.EXPIRED_TIME: 700},
        rule=rule,
        end_offset=10,
    )
