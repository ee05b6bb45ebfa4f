"""When a table goes on, when it is made anew, and what it is filled with.

Recently read rows and keys are kept in memory within bounds.
"""

import resource
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.feed_bench import BenchMaker, FeedBench, row_key_of, short
from varve.foundation.errors import Closed, Corrupt, Unavailable
from varve.rocks.database import MemoryBudget
from varve.shapes.feed.changes import Change
from varve.shapes.feed.decoders import Decoded, PlainDecoder, Record
from varve.shapes.feed.initial_load import KeyIndexScan
from varve.shapes.feed.row import RowKeys, row_key_prefix
from varve.shapes.feed.table import TopicTable
from varve.shapes.feed.table_store import Reset, ResetKind, TableState, TableStore
from varve.shapes.offset import ShapeOffset
from varve.topics import HistoryMark, StoreCluster, TopicReader


def test_a_new_table_says_that_shapes_of_before_must_go_until_a_checkpoint(
    bench: FeedBench,
) -> None:
    text = "the table of topic orders is new"
    assert bench.feed.open() == Reset(ResetKind.SOURCE_LOST, text)
    assert bench.crash() == text
    bench.feed.checkpoint(bench.feed.mark())
    assert bench.crash() is None


def test_a_table_read_further_than_the_log_reaches_is_made_anew(bench: FeedBench) -> None:
    bench.open()
    for number in range(5):
        bench.put(f"k{number}", {"n": number})
    bench.poll_all()
    bench.feed.checkpoint(bench.feed.mark())
    bench.topic.partition(0).log.truncate_to(2)
    reason = bench.crash()
    assert reason == "partition 0 ends at 2: it was read up to 5"
    assert len(bench.rows()) == 2


def test_a_topic_made_anew_and_other_rows_make_the_table_anew(bench: FeedBench) -> None:
    bench.put("a", {"n": 1})
    bench.open()
    bench.signature = "plain id"
    assert bench.crash() == "rows were made by 'plain key', now by 'plain id'"
    bench.feed.checkpoint(bench.feed.mark())
    bench.feed.close()
    bench.store.delete_topic("orders", at_once=True)
    bench.topic = bench.store.create_topic("orders")
    reason = bench.crash()
    assert reason is not None
    assert "created again" in reason
    assert bench.rows() == {}


def test_a_damaged_table_is_made_anew(bench: FeedBench, tmp_path: Path) -> None:
    bench.put("a", {"n": 1})
    bench.open()
    bench.feed.close()
    (tmp_path / "tables" / "orders" / "rows" / "CURRENT").write_bytes(b"nonsense\n")
    reason = bench.crash()
    assert reason is not None
    assert "damaged" in reason
    assert len(bench.rows()) == 1


def test_a_state_comes_back_as_it_was_written() -> None:
    state = TableState(
        positions={0: 5, 1: 7},
        next_tx=13,
        signature="plain key",
        topic_id="",
        caught_up_ms=1,
        reset=Reset(ResetKind.TRUNCATED, "the source was truncated"),
        uncertain_before={1: 9},
        marks={0: HistoryMark(base_offset=3, last_offset=4, leader_epoch=2, crc=7)},
    )
    assert TableState.decode(state.encode(), "here") == state
    plain = replace(state, reset=None, uncertain_before={}, marks={})
    assert TableState.decode(plain.encode(), "here") == plain
    for reset in (b'["?", "a text"]', b"[]", b'"a text"'):
        damaged = plain.encode().replace(b'"reset": null', b'"reset": ' + reset)
        with pytest.raises(Corrupt, match="cannot be read"):
            TableState.decode(damaged, "here")


def test_the_state_comes_from_key_indexes_without_what_was_superseded(tmp_path: Path) -> None:
    bench = FeedBench(
        tmp_path, partitions=2, settings={"cleanup.policy": "compact", "segment.bytes": 4000}
    )
    for number in range(400):
        bench.put(f"k{number % 20}", {"n": number})
    bench.put("k3", None)
    bench.store.clean("orders", dry_run=True)
    read_counts: list[int] = []

    def make(source: TopicReader) -> KeyIndexScan:
        read_counts.append(sum(map(len, KeyIndexScan(bench.store, source).read())))
        return KeyIndexScan(bench.store, source)

    bench.make_rows = make
    bench.open()
    (read_count,) = read_counts
    assert 0 < read_count < 200
    rows = {key: row["n"] for key, row in bench.rows().items()}
    assert rows == {
        row_key_of(f"k{number}"): str(380 + number).encode() for number in range(20) if number != 3
    }
    bench.put("k3", {"n": 1})
    assert [short(item) for item in bench.changes()] == [("k3", b"1", None)]
    bench.close()


def test_segments_replaced_under_way_are_read_as_they_are(make_bench: BenchMaker) -> None:
    bench = make_bench(settings={"cleanup.policy": "compact", "segment.bytes": 2000})
    for number in range(200):
        bench.put(f"k{number % 20}", {"n": number})
    bench.store.clean("orders", dry_run=True)
    source = StoreCluster(bench.store).reader("orders")
    state = KeyIndexScan(bench.store, source)
    bench.store.clean("orders", at_once=True)
    last: dict[bytes | None, bytes | None] = {}
    for records in state.read():
        last.update(records)
    assert last == {
        f"k{number}".encode(): f'{{"n": {180 + number}}}'.encode() for number in range(20)
    }


@pytest.mark.parametrize("count", [0, 1])
def test_a_log_without_closed_segments_has_a_state_by_key_indexes(
    make_bench: BenchMaker, count: int
) -> None:
    bench = make_bench(settings={"cleanup.policy": "compact"})
    bench.make_rows = lambda source: KeyIndexScan(bench.store, source)
    for number in range(count):
        bench.put("a", {"n": number})
    bench.open()
    assert len(bench.rows()) == count


def test_a_filling_that_was_cut_begins_anew(bench: FeedBench) -> None:
    for number in range(5):
        bench.put(f"k{number}", {"n": number})

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.feed.open(stop)
    assert not bench.feed.is_open
    assert bench.feed.open() is not None
    assert len(bench.rows()) == 5


def test_a_table_that_cannot_be_read_keeps_nothing_back_that_it_has(
    make_bench: BenchMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(partitions=2)
    bench.open()
    for number in range(4):
        bench.put(f"k{number}", {"n": number}, partition=number % 2)
    get_rows = TableStore.get_rows

    def fail_once(store: TableStore, keys: list[str]) -> list[bytes | None]:
        if any("k0" in key for key in keys):
            monkeypatch.undo()
            raise Unavailable("the disk")
        return get_rows(store, keys)

    monkeypatch.setattr(TableStore, "get_rows", fail_once)
    options: list[Change] = []
    for _ in range(6):
        with suppress(Unavailable):
            options += [change for item in bench.poll() for change in item.changes]
    assert sorted(short(item)[0] for item in options) == ["k0", "k1", "k2", "k3"]
    assert [item.offset for item in options] == sorted(item.offset for item in options)


class _Breaking:
    """Fails once on a record, in a way that nobody thought of."""

    has_failed = False

    def decode_many(self, records: Sequence[Record]) -> list[Decoded]:
        if any(key == b"bad" for key, _ in records) and not self.has_failed:
            self.has_failed = True
            raise IndexError("nobody thought of it")
        return PlainDecoder().decode_many(records)


def test_what_fails_unforeseen_is_read_again_by_a_feed_that_is_opened_again(
    make_bench: BenchMaker,
) -> None:
    bench = make_bench(decoder=_Breaking())
    bench.open()
    for key in ("a", "bad", "b"):
        bench.put(key, {"n": 1})
    with pytest.raises(IndexError):
        bench.poll_all()
    assert not bench.feed.is_open
    with pytest.raises(Closed):
        bench.poll()
    assert bench.feed.open() is None
    assert [short(item)[0] for item in bench.changes()] == ["a", "bad", "b"]


@contextmanager
def _files_of_at_most(size: int) -> Iterator[None]:
    """Lets writes beyond a size fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_table_that_could_not_be_written_is_opened_again_once_it_can(bench: FeedBench) -> None:
    bench.open()
    for number in range(20):
        bench.put(f"k{number}", {"text": "x" * 1000})
    options = bench.poll_all()
    mark = bench.feed.mark()
    with _files_of_at_most(4096), pytest.raises(Unavailable, match="tables/orders/rows"):
        bench.feed.checkpoint(mark)
    bench.put("k0", {"text": "y"})
    assert len(bench.poll_all()) == 1
    assert bench.feed.open() is None
    assert bench.poll_all()[:20] == options
    bench.feed.checkpoint(bench.feed.mark())
    bench.crash()
    assert bench.poll_all() == []
    assert len(bench.rows()) == 20


def _break_row(bench: FeedBench, key: str) -> None:
    """Opens the feed on a table that holds something else for a row."""
    bench.feed.close()
    store = TableStore(str(bench.path / "tables" / "orders" / "rows"))
    state = store.read_state()
    assert state is not None
    store.write({row_key_of(key): b"nonsense"}, state)
    store.close()
    assert bench.crash() is None


def test_a_table_whose_damage_is_found_late_is_made_anew(bench: FeedBench) -> None:
    bench.put("a", {"n": 1})
    bench.open()
    _break_row(bench, "a")
    bench.put("a", {"n": 2})
    (only,) = bench.poll()
    assert only.reset is not None
    assert "table is damaged" in only.reset.text
    assert bench.open() is not None
    assert bench.rows()[row_key_of("a")]["n"] == b"2"


@pytest.mark.parametrize("is_polled", [True, False])
def test_damage_that_a_view_finds_makes_the_table_anew(bench: FeedBench, is_polled: bool) -> None:
    bench.put("a", {"n": 1})
    bench.open()
    _break_row(bench, "a")
    with bench.feed.view() as view, pytest.raises(Corrupt) as kept:
        list(view.rows())
    if is_polled:
        assert [item.reset is not None for item in bench.poll()] == [True]
    assert bench.open() is not None
    assert bench.rows()[row_key_of("a")]["n"] == b"1"
    assert "not a JSON object" in str(kept.value)


_STATE = TableState(positions={0: 0}, next_tx=1, signature="plain key", topic_id="", caught_up_ms=1)


class _Store(TableStore):
    """Notes the keys that the disk is asked for."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.asked: list[str] = []

    def get_rows(self, keys: list[str]) -> list[bytes | None]:
        self.asked += keys
        return super().get_rows(keys)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[_Store]:
    created = _Store(str(tmp_path / "rows"))
    yield created
    created.close()


def _fill(table: TopicTable, rows: dict[str, bytes | None]) -> None:
    table.apply(rows, position=ShapeOffset(1, 0), byte_count=0)
    table.checkpoint(table.seal(_STATE))


def _find_asked(table: TopicTable, store: _Store, keys: list[str]) -> list[str]:
    store.asked.clear()
    table.find_rows(keys)
    return list(store.asked)


def test_of_a_checkpoint_the_last_rows_are_kept(store: _Store) -> None:
    table = TopicTable(store, recent_rows=4)
    rows: dict[str, bytes | None] = {f'"{number}"': b"{}" for number in range(20, 40)}
    _fill(table, rows)
    keys = list(rows)
    assert _find_asked(table, store, keys[-4:]) == []
    assert _find_asked(table, store, keys[:4]) == keys[:4]


def test_rows_that_are_kept_have_a_bound_in_bytes(store: _Store) -> None:
    table = TopicTable(store, recent_rows=1000, recent_bytes=300)
    rows: dict[str, bytes | None] = {
        f'"{number}"': b'{"text":"%s"}' % (b"x" * 89) for number in range(10, 30)
    }
    _fill(table, rows)
    keys = list(rows)
    asked = _find_asked(table, store, keys)
    assert 14 <= len(asked) < 20
    assert asked == keys[: len(asked)]
    # Those that were just read are kept in their place, within the same bound.
    assert len(_find_asked(table, store, keys)) >= 14


def test_keys_without_a_row_count_too(store: _Store) -> None:
    table = TopicTable(store, recent_rows=1000, recent_bytes=300)
    keys = [f'"{number}{"x" * 97}"' for number in range(10, 30)]
    table.find_rows(keys)
    assert 14 <= len(_find_asked(table, store, keys)) < 20


def test_rows_are_scanned_within_a_bound_in_bytes(store: _Store) -> None:
    table = TopicTable(store)
    on_disk: dict[str, bytes | None] = {
        f'"{number}"': b'{"text":"%s"}' % (b"x" * 1_000_000) for number in range(10, 30)
    }
    store.fill([on_disk])
    with closing(store.scan()) as scan:
        parts = [len(part) for part in scan.parts()]
    assert sum(parts) == 20
    assert max(parts) <= 5
    changed = {key.replace('"', '"c'): text for key, text in on_disk.items()}
    table.apply(changed, position=ShapeOffset(1, 0), byte_count=0)
    with table.view() as view:
        assert {key for key, _ in view.rows()} == on_disk.keys() | changed.keys()


def test_keys_that_are_kept_have_a_bound_in_bytes() -> None:
    keys = RowKeys(row_key_prefix("t"))
    columns = [b'{"key":"%08d%s"}' % (number, b"x" * 100_000) for number in range(100)]
    first = keys.get(columns[0])
    assert keys.get(columns[0]) is first
    for item in columns:
        keys.get(item)
    again = keys.get(columns[0])
    assert again == first
    assert again is not first


def test_tables_share_the_memory_of_one_budget(tmp_path: Path) -> None:
    budget = MemoryBudget(16 << 20)
    stores = [TableStore(str(tmp_path / f"t{number}"), budget) for number in range(3)]
    before = budget.in_use_bytes()
    for store in stores:
        rows: dict[str, bytes | None] = {
            f'"k{number}"': b'{"n":"%s"}' % (b"x" * 1000) for number in range(1000)
        }
        store.fill([rows])
    assert before + (2 << 20) < budget.in_use_bytes() < 24 << 20
    for store in stores:
        store.close()
