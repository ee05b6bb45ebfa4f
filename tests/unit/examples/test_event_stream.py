"""examples/topic_classes/event_stream.py: a week of events, for a year."""

from examples.topic_classes.event_stream import live
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
