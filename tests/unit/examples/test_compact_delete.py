"""examples/topic_classes/compact_delete.py: carts, while somebody touches them, for two years."""

import pytest

from examples.topic_classes.compact_delete import DAY_MS, SETTINGS, Touched, live
from varve.testing import VirtualStore

RETENTION_DAYS = 90
SLACK_DAYS = 60
"""How much longer a cart stays because its segment was joined with younger ones."""


def test_a_cart_of_the_last_ninety_days_is_there_and_a_forgotten_one_is_not() -> None:
    touched: Touched = {}
    with VirtualStore() as kit:
        for at in live(kit, touched, quarters=8):
            carts = kit.store.topic("carts")
            records = {str(record.key or b"", "utf-8"): record.timestamp for record in carts.read()}
            for key, last_ms in touched.items():
                days = (kit.now_ms - last_ms) / DAY_MS
                if days < RETENTION_DAYS:
                    assert records[key] == last_ms
                elif days > RETENTION_DAYS + SLACK_DAYS:
                    assert key not in records
            for key in list(touched)[:: len(touched) // 5]:
                found = carts.get(key)
                assert (found and found.timestamp) == records.get(key)
            assert at.oldest_days <= RETENTION_DAYS + SLACK_DAYS
        assert at.log_start > 0
        assert at.hot_bytes < 20_000


def test_every_removal_is_on_record_with_its_reason() -> None:
    with VirtualStore() as kit:
        for _ in live(kit, {}, quarters=3):
            pass
        (report,) = kit.store.audit("carts", deep=True)
        assert report.is_clean
        kept = sum(1 for _ in kit.store.topic("carts").read())
        assert kept < kit.store.topic("carts").offsets().end / 4


def test_with_large_segments_a_forgotten_cart_rides_along_with_younger_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(SETTINGS, "segment.bytes", 1 << 30)
    with VirtualStore() as kit:
        *_, last = live(kit, {}, quarters=3)
    assert last.oldest_days > 2 * RETENTION_DAYS
