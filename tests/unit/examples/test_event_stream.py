"""examples/topic_classes/event_stream.py: a week of events, for a year."""

from examples.topic_classes.event_stream import DAY_MS, SETTINGS, live
from varve.testing import VirtualStore


def test_a_week_stays_readable_and_what_is_older_leaves_reads_and_disk() -> None:
    with VirtualStore() as kit:
        for at in live(kit, quarters=4):
            views = kit.store.topic("views")
            oldest_ms = min(record.timestamp for record in views.read())
            assert oldest_ms == next(views.read()).timestamp
            # Whole segments go: one day, plus the day until the next look.
            assert 7 <= at.oldest_days <= 7 + 2
            count = sum(1 for _ in views.read())
            assert count == at.end - at.log_start
            kit.advance(minutes=2)
            kit.run_background()  # file.delete.delay.ms is over
            bases = [int(name[:20]) for name in kit.fs.names("/data/views-0") if ".log" in name]
            assert min(bases) == views.offsets().log_start
            assert len(bases) <= 10


def test_disk_use_follows_the_rate_and_not_the_time() -> None:
    with VirtualStore() as kit:
        quarters = list(live(kit, quarters=4))
    per_event = [at.hot_bytes / (at.end - at.log_start) for at in quarters]
    assert max(per_event) < 1.2 * min(per_event)
    assert quarters[-1].end > 4 * quarters[0].end
    assert quarters[-1].hot_bytes < 2.5 * quarters[0].hot_bytes


def test_a_visitor_with_a_wrong_clock_neither_pins_nor_destroys_a_day() -> None:
    with VirtualStore() as kit:
        views = kit.store.create_topic("views", settings=SETTINGS)
        for day, wrong_ms in enumerate([0, 0, -50 * 365 * DAY_MS, 70 * 365 * DAY_MS, 0, 0, 0]):
            views.append(value=f"day {day}")
            views.append(value=f"wrong {day}", timestamp_ms=kit.now_ms + wrong_ms)
            kit.advance(days=1)
            kit.run_background()
        assert sum(1 for _ in views.read()) == 14
        for _ in range(8):
            kit.advance(days=1)
            kit.run_background()
        assert list(views.read()) == []
