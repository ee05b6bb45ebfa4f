"""examples/topic_classes/audit_log.py: seven years on record, a quarter at hand: G1, G5."""

import pytest

from examples.topic_classes.audit_log import DAY_MS, YEAR_MS, live
from varve import errors
from varve.object_store import MemoryObjectStore
from varve.testing import FaultyObjectStore, VirtualStore


def _bases_on_disk(kit: VirtualStore) -> list[int]:
    return [int(name[:20]) for name in kit.fs.names("/data/audit-0") if name.endswith(".log")]


def _bases_in_bucket(kit: VirtualStore) -> list[int]:
    keys = [one.key for one in kit.objects.list("")]
    return sorted({int(key.split("/segment/")[1][:20]) for key in keys if "/segment/" in key})


def test_seven_years_are_read_and_what_is_older_is_gone_from_both_tiers() -> None:
    with VirtualStore() as kit:
        for at in live(kit, years=8):
            assert at.hot_bytes < 2_000
            assert min(7, at.year) - 0.01 <= at.oldest_years <= 7.1
        for _ in range(2):
            kit.advance(days=8)  # then varve.tier.manifest.retention.ms is over
            kit.run_background()
        audit = kit.store.topic("audit")
        offsets = audit.offsets()
        records = list(audit.read())
        assert [one.offset for one in records] == list(range(offsets.log_start, offsets.end))
        assert {one.value[:9] for one in records if one.value} == {
            b"in year %d" % year for year in range(2, 9)
        }
        assert _bases_in_bucket(kit)[0] == offsets.log_start
        assert min(_bases_on_disk(kit)) == offsets.local_start
        with pytest.raises(errors.OffsetOutOfRange):
            next(audit.read(start=offsets.log_start - 1))


def test_a_time_years_back_is_found_in_the_bucket() -> None:
    with VirtualStore() as kit:
        for _ in live(kit, years=3):
            pass
        audit = kit.store.topic("audit")
        offset = audit.offset_for_time(kit.now_ms - 2 * YEAR_MS)
        assert offset is not None
        assert offset < audit.offsets().local_start
        first = next(audit.read(start=offset))
        assert abs(kit.now_ms - 2 * YEAR_MS - first.timestamp) <= 31 * DAY_MS
        assert first.value is not None
        assert first.value.startswith(b"in year 2")


def test_while_the_bucket_is_away_entries_are_taken_and_nothing_leaves_the_disk() -> None:
    bucket = FaultyObjectStore(MemoryObjectStore())
    with VirtualStore(objects=bucket) as kit:
        for _ in live(kit, years=1):
            pass
        audit = kit.store.topic("audit")
        local_start = audit.offsets().local_start
        bucket.go_down()
        for _ in range(12):
            audit.append(value="still on record")
            kit.advance(days=365 / 12)
            kit.run_background()
        assert audit.offsets().end == 612
        assert audit.offsets().local_start <= 600
        assert sum(1 for _ in audit.read(start=600)) == 12
        with pytest.raises(errors.StoreUnavailable, match="offset 300"):
            next(audit.read(start=300))
        assert not kit.store.health().is_healthy

        bucket.come_up()
        kit.advance(hours=1)
        kit.run_background()
        kit.run_background()
        assert kit.store.health().is_healthy
        assert audit.offsets().local_start > local_start
        assert sum(1 for _ in audit.read()) == 612
