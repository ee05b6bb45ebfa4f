"""examples/topic_classes/capped_tier.py: a budget in bytes holds, and no more goes: G5."""

import pytest

from examples.topic_classes.capped_tier import SETTINGS, live
from varve import errors
from varve.testing import VirtualStore

TOTAL_BYTES = 200_000
LOCAL_BYTES = 20_000
SEGMENT_BYTES = 5_000


def test_the_settings_are_those_the_test_speaks_of() -> None:
    assert SETTINGS["retention.bytes"] == TOTAL_BYTES
    assert SETTINGS["local.retention.bytes"] == LOCAL_BYTES
    assert SETTINGS["segment.bytes"] == SEGMENT_BYTES


def test_both_caps_hold_and_no_more_goes_than_they_ask_for() -> None:
    with VirtualStore() as kit:
        for at in live(kit, quarters=10):
            assert at.hot_bytes < LOCAL_BYTES + SEGMENT_BYTES
            active_bytes = 2 * SEGMENT_BYTES
            assert at.cold_bytes <= TOTAL_BYTES + SEGMENT_BYTES
            if at.log_start:
                assert at.cold_bytes + active_bytes >= TOTAL_BYTES
            assert at.bucket_bytes < TOTAL_BYTES + 4 * SEGMENT_BYTES
        assert at.log_start > 0
        assert at.oldest_days < 400
        records = kit.store.topic("readings").read()
        assert [one.offset for one in records] == list(range(at.log_start, at.end))


def test_what_the_cap_let_go_leaves_the_bucket_after_its_grace() -> None:
    with VirtualStore() as kit:
        *_, at = live(kit, quarters=9)
        assert at.log_start > 0
        kit.advance(days=8)
        kit.run_background()
        start = kit.store.topic("readings").offsets().log_start
        keys = [one.key for one in kit.objects.list("") if "/segment/" in one.key]
        bases = sorted({int(key.split("/segment/")[1][:20]) for key in keys})
        assert bases[0] == start
        with pytest.raises(errors.OffsetOutOfRange):
            next(kit.store.topic("readings").read(start=start - 1))
