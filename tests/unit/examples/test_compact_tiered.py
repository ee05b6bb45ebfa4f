"""examples/topic_classes/compact_tiered.py: current prices at hand, all in the bucket: G4."""

from examples.topic_classes.compact_tiered import Prices, live
from varve.testing import VirtualStore


def _latest(kit: VirtualStore, start: int | None = None) -> Prices:
    return {
        str(record.key or b"", "utf-8"): None if record.value is None else record.value.decode()
        for record in kit.store.topic("prices").read(start=start)
    }


def test_a_reader_from_the_start_ends_with_every_current_price() -> None:
    prices: Prices = {}
    with VirtualStore() as kit:
        for _ in live(kit, prices, years=3):
            found = _latest(kit)
            assert {key: found.get(key) for key in prices} == prices
        topic = kit.store.topic("prices")
        for key in [*list(prices)[:40:4], *list(prices)[-40::4]]:
            record = topic.get(key)
            value = None if record is None or record.value is None else record.value.decode()
            assert value == prices[key]
        records = list(topic.read())
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets))


def test_the_bucket_has_every_change_and_the_disk_the_latest_of_a_year() -> None:
    with VirtualStore() as kit:
        *_, last = live(kit, {}, years=3)
        topic = kit.store.topic("prices")
        remote = list(topic.read(end=last.local_start))
        assert [record.offset for record in remote] == list(range(last.local_start))
        assert last.hot_records < (last.end - last.local_start)
        assert last.hot_bytes < last.cold_bytes / 4
        assert last.local_start > last.end - 2 * 312


def test_a_tombstone_stays_for_as_long_as_the_bucket_has_what_it_deletes() -> None:
    prices: Prices = {}
    with VirtualStore() as kit:
        for _ in live(kit, prices, years=2):
            pass
        topic = kit.store.topic("prices")
        topic.append(key="article-1", value=None)
        for number in range(26):
            topic.append(key="article-2", value=f"{number} cents")
            kit.advance(days=14)
            kit.run_background()
        first = next(record for record in topic.read() if record.key == b"article-1")
        assert first.offset < topic.offsets().local_start
        assert _latest(kit)["article-1"] is None
        assert all(report.is_clean for report in kit.store.audit("prices", deep=True))
