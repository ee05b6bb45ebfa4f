"""A feed gives each row with the one before it, in one order, and goes on where it was."""

import json
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.feed_bench import FeedBench, row_key_of
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Closed, Corrupt, Unavailable
from varve.records import build_batch
from varve.records.record import Record as LogRecord
from varve.shapes.feed.absence import Absence
from varve.shapes.feed.change import Change, Transaction
from varve.shapes.feed.decoder import Decoded, Record, RecordKind
from varve.shapes.feed.embedded_source import EmbeddedSource
from varve.shapes.feed.filling import FillProgress
from varve.shapes.feed.key_index_state import KeyIndexState
from varve.shapes.feed.plain_decoder import PlainDecoder
from varve.shapes.feed.reset import Reset, ResetKind
from varve.shapes.feed.table_store import TableState, TableStore
from varve.shapes.offset import Offset
from varve.windows.dedup.producing import Producer, join_transaction


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[FeedBench]:
    made = FeedBench(tmp_path)
    yield made
    made.close()


def _short(change: Change) -> tuple[str, bytes | None, bytes | None]:
    row = None if change.row is None else change.row["n"]
    previous = None if change.previous is None else change.previous["n"]
    return change.key[len('"public"."orders"/"') : -1], row, previous


def test_changes_carry_the_row_before_and_the_offset_of_their_record(bench: FeedBench) -> None:
    bench.put("a", {"n": 1})
    bench.open()
    bench.put("a", {"n": 2})
    bench.put("b", {"n": 3})
    bench.put("a", None)
    changes = bench.changes()
    assert [_short(one) for one in changes] == [
        ("a", b"2", b"1"),
        ("b", b"3", None),
        ("a", None, b"2"),
    ]
    assert [one.offset for one in changes] == [Offset(2, 0), Offset(3, 0), Offset(4, 0)]
    assert changes[0].key_columns == {"key": b'"a"'}
    assert changes[0].row == {"key": b'"a"', "n": b"2"}
    assert bench.feed.position == Offset(4, 0)


def test_what_changes_nothing_gives_no_change_and_moves_the_position(bench: FeedBench) -> None:
    bench.open()
    bench.put("a", {"n": 1})
    bench.put("a", {"n": 1})
    bench.put("gone", None)
    assert len(bench.changes()) == 1
    assert bench.feed.position == Offset(3, 0)
    assert bench.feed.counts.unchanged == 2


def test_records_without_a_key_are_skipped_and_counted(bench: FeedBench) -> None:
    bench.open()
    bench.topic.append(value=b'{"n":1}')
    assert bench.changes() == []
    assert bench.feed.counts.skipped == 1
    assert bench.feed.is_caught_up


def test_a_new_table_says_that_shapes_of_before_must_go_until_a_checkpoint(
    bench: FeedBench,
) -> None:
    text = "the table of topic orders is new"
    assert bench.feed.open() == Reset(ResetKind.SOURCE_LOST, text)
    assert bench.crash() == text
    bench.feed.checkpoint(bench.feed.mark())
    assert bench.crash() is None


def test_after_a_crash_all_behind_the_checkpoint_is_given_again_alike(bench: FeedBench) -> None:
    bench.open()
    bench.put("a", {"n": 1})
    bench.poll_all()
    bench.feed.checkpoint(bench.feed.mark())
    bench.put("a", {"n": 2})
    bench.put("b", {"n": 3})
    given = bench.poll_all()
    assert bench.crash() is None
    assert bench.rows() == {row_key_of("a"): {"key": b'"a"', "n": b"1"}}
    assert bench.poll_all() == given


def test_a_checkpoint_writes_no_more_than_its_mark(bench: FeedBench) -> None:
    bench.open()
    bench.put("a", {"n": 1})
    bench.poll_all()
    mark = bench.feed.mark()
    bench.put("a", {"n": 2})
    bench.poll_all()
    bench.feed.checkpoint(mark)
    assert bench.feed.overlay_count == 1
    bench.crash()
    assert bench.rows()[row_key_of("a")]["n"] == b"1"
    assert [_short(one) for one in bench.changes()] == [("a", b"2", b"1")]


def test_a_view_stays_as_it_was(bench: FeedBench) -> None:
    bench.put("a", {"n": 1})
    bench.put("b", {"n": 1})
    bench.open()
    bench.put("c", {"n": 1})
    bench.poll_all()
    with bench.feed.view() as view:
        bench.put("a", None)
        bench.put("b", {"n": 2})
        bench.poll_all()
        bench.feed.checkpoint(bench.feed.mark())
        assert view.position == Offset(3, 0)
        rows = dict(view.rows())
        assert {key: row["n"] for key, row in rows.items()} == {
            row_key_of("a"): b"1",
            row_key_of("b"): b"1",
            row_key_of("c"): b"1",
        }
        assert dict(view.rows()) == rows
    assert bench.rows().keys() == {row_key_of("b"), row_key_of("c")}
    with pytest.raises(Closed):
        next(view.rows())


def test_retention_that_overtakes_the_feed_resets_and_fills_again(bench: FeedBench) -> None:
    bench.open()
    for number in range(5):
        bench.put(f"k{number}", {"n": number})
    bench.topic.partition(0).delete_records(3)
    (only,) = bench.poll()
    assert only.reset is not None
    assert not bench.feed.is_open
    with pytest.raises(Closed):
        bench.poll()
    reason = bench.open()
    assert reason is not None
    assert bench.rows().keys() == {row_key_of("k3"), row_key_of("k4")}


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
    assert "was made anew" in reason
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


def test_gaps_after_a_restart_make_the_first_record_of_a_key_uncertain(tmp_path: Path) -> None:
    bench = FeedBench(tmp_path, settings={"cleanup.policy": "compact", "segment.bytes": 300})
    bench.open()
    bench.put("a", {"n": 1})
    bench.put("b", {"n": 1})
    bench.put("a", {"n": 2})
    bench.put("a", {"n": 3})
    bench.poll_all()
    bench.store.clean("orders", roll=True, at_once=True)
    bench.put("b", {"n": 2})
    assert bench.crash() is None
    found = [(_short(one), one.is_uncertain) for one in bench.changes()]
    assert found == [
        (("b", b"1", None), True),
        (("a", b"3", None), True),
        (("b", b"2", b"1"), True),
    ]
    bench.put("a", {"n": 4})
    assert [one.is_uncertain for one in bench.changes()] == [False]
    bench.close()


def test_a_gap_before_a_checkpoint_makes_uncertain_what_lies_behind_it(tmp_path: Path) -> None:
    bench = FeedBench(tmp_path, settings={"cleanup.policy": "compact"})
    bench.put("a", {"n": 1})
    bench.open()
    bench.put("a", {"n": 2})
    bench.put("b", {"n": 1})
    bench.put("a", {"n": 1})
    assert [one.offset for one in bench.changes()][-1] == Offset(4, 0)
    bench.store.clean("orders", roll=True, at_once=True)
    bench.crash()
    assert [_short(one.changes[0]) for one in bench.poll(1)] == [("b", b"1", None)]
    bench.feed.checkpoint(bench.feed.mark())
    for _ in range(2):
        # The row is that of the table, but shapes may hold another one.
        found = [(_short(one), one.offset, one.is_uncertain) for one in bench.changes()]
        assert found == [(("a", b"1", b"1"), Offset(4, 0), True)]
        assert bench.crash() is None
    bench.changes()
    bench.feed.checkpoint(bench.feed.mark())
    bench.crash()
    bench.put("a", {"n": 3})
    assert [one.is_uncertain for one in bench.changes()] == [False]
    bench.close()


def test_what_came_after_the_restart_is_uncertain_if_it_made_the_gap(tmp_path: Path) -> None:
    bench = FeedBench(tmp_path, settings={"cleanup.policy": "compact"})
    bench.put("a", {"n": 1})
    bench.open()
    bench.put("a", {"n": 2})
    bench.put("b", {"n": 1})
    bench.poll_all()
    bench.crash()
    bench.put("a", {"n": 1})
    bench.store.clean("orders", roll=True, at_once=True)
    found = [(_short(one), one.is_uncertain) for one in bench.changes()]
    assert found == [(("b", b"1", None), True), (("a", b"1", b"1"), True)]
    bench.close()


def test_a_table_that_tells_of_no_doubts_has_them_all() -> None:
    state = TableState(
        positions={0: 5, 1: 7}, next_tx=13, signature="plain key", topic_id="", caught_up_ms=1
    )
    assert TableState.decode(state.encode(), "here") == state
    older = json.loads(state.encode())
    del older["doubts"]
    found = TableState.decode(json.dumps(older).encode(), "here")
    assert found is not None
    assert found.doubts.keys() == {0, 1}


def test_a_table_tells_the_kind_of_its_reset_and_without_one_the_source_was_lost() -> None:
    reset = Reset(ResetKind.TRUNCATED, "the source was truncated")
    state = TableState(
        positions={0: 5}, next_tx=6, signature="", topic_id="", caught_up_ms=1, reset=reset
    )
    assert TableState.decode(state.encode(), "here") == state
    older = json.loads(state.encode()) | {"reset": "the table is new"}
    found = TableState.decode(json.dumps(older).encode(), "here")
    assert found is not None
    assert found.reset == Reset(ResetKind.SOURCE_LOST, "the table is new")
    with pytest.raises(Corrupt, match="cannot be read"):
        TableState.decode(json.dumps(older | {"reset": {"kind": "?"}}).encode(), "here")


def test_deletions_that_may_be_lost_reset_the_topic(tmp_path: Path) -> None:
    settings: dict[str, str | int] = {"cleanup.policy": "compact", "delete.retention.ms": 1000}
    bench = FeedBench(tmp_path, settings=settings)
    bench.open()
    for number in range(3):
        bench.put("a", {"n": number})
    bench.store.clean("orders", roll=True, at_once=True)
    bench.crash()
    bench.clock.advance(1001)
    (only,) = bench.poll()
    assert only.reset is not None
    assert only.reset.kind is ResetKind.SOURCE_LOST
    assert "deletions may be gone" in only.reset.text
    bench.close()


def _without_an_early_record(path: Path) -> FeedBench:
    """A feed that was at the end of its topic, then stopped, and now finds a gap."""
    settings: dict[str, str | int] = {"cleanup.policy": "compact", "delete.retention.ms": 60_000}
    bench = FeedBench(path, settings=settings)
    bench.put("z", {"n": 0})
    bench.open()
    bench.poll_all()
    bench.feed.checkpoint(bench.feed.mark())
    bench.feed.close()
    for number in range(3):
        bench.put("a", {"n": number})
    bench.store.clean("orders", roll=True, at_once=True)
    return bench


def test_a_clock_set_back_while_the_feed_was_closed_counts_as_long_away(tmp_path: Path) -> None:
    bench = _without_an_early_record(tmp_path)
    bench.clock.advance(-1)
    bench.crash()
    (only,) = bench.poll()
    assert only.reset is not None
    assert "nobody knows when" in only.reset.text
    bench.close()


def test_a_clock_set_back_while_the_feed_runs_takes_nothing_from_its_absence() -> None:
    clock = ManualClock()
    absence = Absence(clock, clock.now_ms() - 30)
    clock.advance(-50)
    absence.look()
    assert absence.is_longer_than(29)
    clock.advance(10)
    absence.look()
    assert absence.is_longer_than(39)
    assert not absence.is_longer_than(40)


class _Marked:
    """Plain records, but that a key tells of truncations and of other schemas."""

    def decode(self, key: bytes | None, value: bytes | None) -> Decoded:
        return self.decode_many([(key, value)])[0]

    def decode_many(self, records: list[Record]) -> list[Decoded]:
        plain = PlainDecoder().decode_many(records)
        kinds = {b"truncate": RecordKind.TRUNCATE, b"schema": RecordKind.SCHEMA_CHANGE}
        return [
            Decoded(kinds[key]) if key in kinds else one
            for (key, _), one in zip(records, plain, strict=True)
        ]


def test_a_truncation_resets_and_empties_the_table(tmp_path: Path) -> None:
    bench = FeedBench(tmp_path, decoder=_Marked())  # type: ignore[arg-type]
    bench.put("a", {"n": 1})
    bench.open()
    bench.put("b", {"n": 1})
    bench.put("truncate", {"n": 1})
    bench.put("a", {"n": 2})
    given = bench.poll()
    assert [one.reset and one.reset.kind for one in given] == [None, ResetKind.TRUNCATED]
    assert bench.rows() == {}
    assert bench.feed.is_open
    assert [_short(one) for one in bench.changes()] == [("a", b"2", None)]
    bench.feed.checkpoint(bench.feed.mark())
    bench.crash()
    assert bench.rows().keys() == {row_key_of("a")}
    bench.close()


def test_another_schema_resets_and_keeps_the_rows(tmp_path: Path) -> None:
    bench = FeedBench(tmp_path, decoder=_Marked())  # type: ignore[arg-type]
    bench.put("a", {"n": 1})
    bench.open()
    bench.put("schema", {"n": 1})
    bench.put("a", {"n": 2})
    assert [one.reset and one.reset.kind for one in bench.poll()] == [ResetKind.SCHEMA_CHANGED]
    assert bench.rows().keys() == {row_key_of("a")}
    assert [_short(one) for one in bench.changes()] == [("a", b"2", b"1")]
    bench.close()


def test_several_partitions_have_one_order_that_stays(tmp_path: Path) -> None:
    bench = FeedBench(tmp_path, partitions=3)
    bench.open()
    for number in range(30):
        bench.put(f"k{number % 7}", {"n": number})
    given: list[Transaction] = []
    while not bench.feed.is_caught_up or len(given) < 30:
        given += bench.poll(4)
    offsets = [change.offset for one in given for change in one.changes]
    assert offsets == sorted(set(offsets))
    assert bench.crash() is None
    again = bench.poll_all(5)
    assert again == given
    assert bench.feed.newest_tx == 30
    bench.close()


def test_a_topic_that_gets_more_partitions_keeps_its_offsets(tmp_path: Path) -> None:
    bench = FeedBench(tmp_path)
    bench.open()
    bench.put("a", {"n": 1})
    bench.put("b", {"n": 2})
    first = bench.poll_all()
    bench.store.add_partitions("orders", 2)
    bench.put("c", {"n": 3}, partition=1)
    bench.crash()
    assert bench.poll_all()[:2] == first
    bench.put("a", {"n": 4}, partition=0)
    bench.put("c", {"n": 5}, partition=1)
    given = bench.poll_all()
    assert len(given) == 2
    bench.crash()
    assert bench.poll_all()[-2:] == given
    bench.close()


def test_partitions_that_come_while_the_feed_runs_are_found(tmp_path: Path) -> None:
    bench = FeedBench(tmp_path)
    bench.open()
    bench.put("a", {"n": 1})
    given = bench.poll_all()
    bench.store.add_partitions("orders", 2)
    bench.put("b", {"n": 2}, partition=1)
    bench.clock.advance(30_000)
    given += bench.poll_all()
    assert len(given) == 2
    bench.crash()
    assert bench.poll_all() == given
    bench.close()


def test_aborted_records_are_left_out(tmp_path: Path) -> None:
    bench = FeedBench(tmp_path)
    bench.open()
    log = bench.topic.partition(0).log
    given = []
    for sequence, (name, is_committed) in enumerate([("a", True), ("b", False)]):
        batch = build_batch([LogRecord(key=name.encode(), value=b'{"n":1}', timestamp=1)])
        log.append(join_transaction(batch, Producer(7, 0), sequence))
        given.append(bench.changes())
        log.end_transaction(producer_id=7, producer_epoch=0, committed=is_committed)
    given.append(bench.changes())
    assert [[_short(one) for one in part] for part in given] == [[], [("a", b"1", None)], []]
    assert bench.feed.is_caught_up
    bench.close()


def test_the_state_comes_from_key_indexes_without_what_was_superseded(tmp_path: Path) -> None:
    bench = FeedBench(
        tmp_path, partitions=2, settings={"cleanup.policy": "compact", "segment.bytes": 4000}
    )
    for number in range(400):
        bench.put(f"k{number % 20}", {"n": number})
    bench.put("k3", None)
    bench.store.clean("orders", dry_run=True)
    found: list[KeyIndexState] = []

    def make(source: EmbeddedSource) -> KeyIndexState:
        found.append(KeyIndexState(bench.store, source))
        return found[-1]

    bench.make_state = make
    bench.open()
    (state,) = found
    assert state.record_count is not None
    assert state.record_count < 200
    rows = {key: row["n"] for key, row in bench.rows().items()}
    assert rows == {
        row_key_of(f"k{number}"): str(380 + number).encode() for number in range(20) if number != 3
    }
    bench.put("k3", {"n": 1})
    assert [_short(one) for one in bench.changes()] == [("k3", b"1", None)]
    bench.close()


def test_segments_replaced_under_way_are_read_as_they_are(tmp_path: Path) -> None:
    bench = FeedBench(tmp_path, settings={"cleanup.policy": "compact", "segment.bytes": 2000})
    for number in range(200):
        bench.put(f"k{number % 20}", {"n": number})
    bench.store.clean("orders", dry_run=True)
    source = EmbeddedSource(bench.store, "orders", wait=lambda seconds: None)
    state = KeyIndexState(bench.store, source)
    bench.store.clean("orders", at_once=True)
    last: dict[bytes | None, bytes | None] = {}
    for records in state.read():
        last.update(records)
    assert last == {
        f"k{number}".encode(): f'{{"n": {180 + number}}}'.encode() for number in range(20)
    }
    bench.close()


def test_a_table_directory_that_vanished_is_filled_again(bench: FeedBench, tmp_path: Path) -> None:
    bench.put("a", {"n": 1})
    bench.open()
    bench.feed.close()
    shutil.rmtree(tmp_path / "tables" / "orders")
    assert bench.crash() == "the table of topic orders is new"
    assert len(bench.rows()) == 1


@pytest.mark.parametrize("count", [0, 1])
def test_a_log_without_closed_segments_has_a_state_by_key_indexes(
    tmp_path: Path, count: int
) -> None:
    bench = FeedBench(tmp_path, settings={"cleanup.policy": "compact"})
    bench.make_state = lambda source: KeyIndexState(bench.store, source)
    for number in range(count):
        bench.put("a", {"n": number})
    bench.open()
    assert len(bench.rows()) == count
    bench.close()


def test_ranges_that_the_table_has_are_cut_off_the_journal(tmp_path: Path) -> None:
    bench = FeedBench(tmp_path, partitions=2)
    bench.open()
    path = tmp_path / "tables" / "orders" / "journal"
    for number in range(40):
        bench.put(f"k{number}", {"n": number})
    while not bench.feed.is_caught_up or bench.feed.counts.records < 40:
        bench.poll(1)
    assert path.stat().st_size > 0
    bench.feed.checkpoint(bench.feed.mark())
    assert bench.crash() is None
    assert path.stat().st_size == 0
    assert bench.poll_all() == []
    bench.close()


def test_a_filling_that_was_cut_begins_anew(bench: FeedBench) -> None:
    for number in range(5):
        bench.put(f"k{number}", {"n": number})

    def stop(progress: FillProgress) -> None:
        assert (progress.how, progress.total) == ("reading the topic", 5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.feed.open(stop)
    assert not bench.feed.is_open
    told: list[int] = []
    assert bench.feed.open(lambda progress: told.append(progress.done)) is not None
    assert told[-1] == 5
    assert len(bench.rows()) == 5


def test_a_table_that_cannot_be_read_keeps_nothing_back_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = FeedBench(tmp_path, partitions=2)
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
    given: list[Change] = []
    for _ in range(6):
        with suppress(Unavailable):
            given += [change for one in bench.poll() for change in one.changes]
    assert sorted(_short(one)[0] for one in given) == ["k0", "k1", "k2", "k3"]
    assert [one.offset for one in given] == sorted(one.offset for one in given)
    bench.close()


class _Breaking:
    """Fails once on a record, in a way that nobody thought of."""

    has_failed = False

    def decode(self, key: bytes | None, value: bytes | None) -> Decoded:
        return self.decode_many([(key, value)])[0]

    def decode_many(self, records: list[Record]) -> list[Decoded]:
        if any(key == b"bad" for key, _ in records) and not self.has_failed:
            self.has_failed = True
            raise IndexError("nobody thought of it")
        return PlainDecoder().decode_many(records)


def test_what_fails_unforeseen_is_read_again_by_a_feed_that_is_opened_again(
    tmp_path: Path,
) -> None:
    bench = FeedBench(tmp_path, decoder=_Breaking())  # type: ignore[arg-type]
    bench.open()
    for key in ("a", "bad", "b"):
        bench.put(key, {"n": 1})
    with pytest.raises(IndexError):
        bench.poll_all()
    assert not bench.feed.is_open
    with pytest.raises(Closed):
        bench.poll()
    assert bench.feed.open() is None
    assert [_short(one)[0] for one in bench.changes()] == ["a", "bad", "b"]
    bench.close()


def test_a_topic_made_anew_while_the_feed_runs_is_noticed(bench: FeedBench) -> None:
    bench.put("a", {"n": 1})
    bench.open()
    bench.poll_all()
    bench.store.delete_topic("orders", at_once=True)
    bench.topic = bench.store.create_topic("orders")
    for number in range(3):
        bench.put("b", {"n": number})
    (only,) = bench.poll()
    assert only.reset is not None
    assert "made anew" in only.reset.text
    assert bench.open() is not None
    assert bench.rows().keys() == {row_key_of("b")}


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
    given = bench.poll_all()
    mark = bench.feed.mark()
    with _files_of_at_most(4096), pytest.raises(Unavailable, match="tables/orders/rows"):
        bench.feed.checkpoint(mark)
    bench.put("k0", {"text": "y"})
    assert len(bench.poll_all()) == 1
    assert bench.feed.open() is None
    assert bench.poll_all()[:20] == given
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
        assert [one.reset is not None for one in bench.poll()] == [True]
    assert bench.open() is not None
    assert bench.rows()[row_key_of("a")]["n"] == b"1"
    assert "no JSON object" in str(kept.value)
