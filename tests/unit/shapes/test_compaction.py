"""Compaction of a shape's log: what stays, and whom it disturbs.

Carries S3 and S6.
"""

from collections.abc import Iterator
from random import Random

import pytest

from tests.support.compaction_bench import HANDLE, ROOT, CompactionBench
from tests.support.shape_messages import UPDATE, make_entry, read_messages
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Closed, Corrupt, InvalidRequest, Unavailable, Unbalanced
from varve.shapes.compaction.compactor import CompactionOutcome, Compactor, read_reports
from varve.shapes.compaction.log_compaction import Balance, LogCompaction, LogPrefix, read_blocks
from varve.shapes.offset import LAST, SNAPSHOT_END, ShapeOffset
from varve.shapes.settings import CompactionSettings, StorageSettings
from varve.shapes.storage.layout import log_directory, log_path
from varve.shapes.storage.log_writer import CompactedLog, ShapeEntry
from varve.shapes.storage.shape_storage import ShapeStorage
from varve.testing.faulty_disk import FaultyFileSystem


@pytest.fixture
def bench() -> CompactionBench:
    return CompactionBench(MemoryFileSystem(ManualClock()))


def _log_files(bench: CompactionBench) -> list[str]:
    names = bench.fs.names(log_directory(bench.storage.directory))
    return [name for name in names if name.startswith("log.")]


def test_h2_more_updates_of_a_row_than_sixteen_bits_count() -> None:
    settings = StorageSettings(chunk_bytes=1 << 18)
    bench = CompactionBench(MemoryFileSystem(ManualClock()), storage_settings=settings)
    count = 70_000
    bench.storage.append(
        [make_entry(ShapeOffset(tx, 0), UPDATE, "row", {"a": tx}) for tx in range(1, count + 1)]
    )
    report = bench.compact()
    assert report.balance.merged > 65_536
    assert report.balance.updates == 1
    state = bench.follow(bench.storage, SNAPSHOT_END, {})
    assert state == {"row": {"a": count}}


def test_h7_shapes_have_scratch_files_of_their_own() -> None:
    settings = CompactionSettings(keep_chunks=0, min_cleanable_ratio=0, memory_bytes=1024)
    fs = FaultyFileSystem(ManualClock())
    bench = CompactionBench(fs, settings=settings)
    bench.change(60)
    bench.compact()
    scratch = [step.path for step in fs.trace if "/.tmp/" in step.path]
    assert scratch
    assert all(path.startswith(f"{ROOT}/.tmp/{HANDLE}") for path in scratch)
    assert not fs.exists(f"{ROOT}/.tmp/{HANDLE}")
    bench.check()


@pytest.mark.parametrize("row_count", [60, 1])
def test_windows_of_which_little_goes_are_left_to_the_parts(row_count: int) -> None:
    settings = CompactionSettings(keep_chunks=0, min_cleanable_ratio=0, memory_bytes=4096)
    bench = CompactionBench(MemoryFileSystem(ManualClock()), settings=settings)
    for number in range(180):
        bench.put(f"row {number % row_count}", a=number)
    bench.storage.flush()
    path = log_path(bench.storage.directory, bench.storage.manifest.latest)
    with bench.fs.open(path) as file:
        ranges = [LogPrefix(file, file.size())]
        before = [block.data.tobytes() for block in read_blocks(ranges, 2048)]
        compaction = LogCompaction(
            ranges,
            memory_bytes=4096,
            secret=(1, 2),
            fs=bench.fs,
            scratch="/scratch",
            balance=Balance(),
            check_open=lambda: None,
        )
        after = [block.data.tobytes() for block in compaction.windows(2048)]
    assert len(before) == len(after) > 3
    are_kept = [left == block for left, block in zip(after[1:], before[1:], strict=True)]
    assert set(are_kept) == {row_count > 1}
    report = bench.compact()
    assert report.balance.entries_out == 2 * row_count
    bench.check(sample=20)


def test_control_messages_alone_stay_in_parts_as_well() -> None:
    settings = CompactionSettings(memory_bytes=1024)
    bench = CompactionBench(MemoryFileSystem(ManualClock()), settings=settings)
    for number in range(20):
        bench.control(f"note {number}")
    assert bench.compact().balance.controls == 20
    messages = read_messages(bench.storage, SNAPSHOT_END, LAST)
    assert [message["headers"]["control"] for message in messages] == [
        f"note {number}" for number in range(20)
    ]


def test_a_log_of_which_little_would_go_is_left_alone() -> None:
    settings = CompactionSettings(keep_chunks=0, min_cleanable_ratio=0.5)
    bench = CompactionBench(MemoryFileSystem(ManualClock()), settings=settings)
    for number in range(40):
        bench.put(f"row {number}", a=1)
    files = _log_files(bench)
    report = bench.compact(is_forced=False)
    assert report.outcome is CompactionOutcome.NOT_WORTH
    assert report.balance.removed_ratio == 0
    assert _log_files(bench) == files
    for number in range(40):
        bench.put("row 1", a=number)
        bench.put("row 2", a=number)
    assert bench.compact(is_forced=False).outcome is CompactionOutcome.DONE


def test_chunk_ends_of_a_compacted_log_are_places_of_its_own(bench: CompactionBench) -> None:
    for number in range(60):
        bench.put(f"row {number}", a="x" * 20)
    seen: set[ShapeOffset] = set()
    for _ in range(3):
        report = bench.compact()
        assert report.boundary is not None
        place, ends = SNAPSHOT_END, []
        while place < report.boundary:
            place = bench.storage.chunk_end(place) or LAST
            ends.append(place)
        assert ends[-1] == report.boundary
        assert len(ends) > 3
        assert not seen & set(ends[:-1])
        assert not {end.op for end in ends[:-1]} & {0}
        seen |= set(ends)
        for number in range(12):
            bench.put("row 1", a=number)
    bench.check()


def test_a_chunk_ends_within_a_transaction_only_if_that_is_large() -> None:
    bench = CompactionBench(
        MemoryFileSystem(ManualClock()),
        settings=CompactionSettings(keep_chunks=0, min_cleanable_ratio=0),
    )
    offsets = [
        *(ShapeOffset(1, 2 * op) for op in range(9)),
        *(ShapeOffset(2, 2 * op) for op in range(60)),
    ]
    entries = [
        make_entry(offset, UPDATE, f"row {number}", {"a": number})
        for number, offset in enumerate(offsets)
    ]
    bench.storage.append(entries)
    report = bench.compact()
    ends, place = [], SNAPSHOT_END
    while report.boundary is not None and place < report.boundary:
        place = bench.storage.chunk_end(place) or LAST
        ends.append(place)
    assert ends[0].tx == 1
    assert ends[0].op > 1000
    assert all(end in offsets for end in ends[1:])
    assert len(ends) > 2


def test_a_broken_entry_is_found_and_nothing_changed(bench: CompactionBench) -> None:
    bench.change(80)
    bench.storage.flush()
    manifest, files = bench.storage.manifest, _log_files(bench)
    path = log_path(bench.storage.directory, manifest.latest)
    with bench.fs.open_writable(path) as file:
        file.write_at(40, b"\xff")
    with pytest.raises(Corrupt, match="CRC-32C"):
        bench.compact()
    assert (bench.storage.manifest, _log_files(bench)) == (manifest, files)


@pytest.mark.parametrize(
    "json",
    [
        b"",
        b"{}",
        b"[1]",
        b'{"key":"k"}',
        b'{"key":"k","value":1,"headers":{"operation":"update"}',
        b'{"key":"k","value":{},"headers":{}}',
        b'{"key":"k","value":{"a":},"headers":{"operation":"update"}}',
        b'{"key":"k","value":{"a":"},"headers":{"operation":"update"}}',
        b'{"key":"k","value":[[[,"headers":{"operation":"update"}}',
        b'{"key":"k","value":{},"more":1,"headers":{"operation":"update"}}',
        b'{"key":"k","value":{"a" :1},"headers":{"operation":"update"}}',
    ],
)
def test_what_is_no_message_is_refused(bench: CompactionBench, json: bytes) -> None:
    whole = make_entry(ShapeOffset(1, 0), UPDATE, "k", {"a": 1})
    broken = [ShapeEntry(ShapeOffset(tx, 0), b"k", UPDATE, json) for tx in range(2, 50)]
    fillers = [make_entry(ShapeOffset(tx, 0), UPDATE, "k", {"a": 1}) for tx in range(50, 90)]
    bench.storage.append([whole, *broken, *fillers])
    with pytest.raises(Corrupt, match="no message"):
        bench.compact()


def test_a_log_that_is_not_put_in_place_leaves_no_files(
    bench: CompactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.change(120)
    bench.storage.flush()
    files = _log_files(bench)

    def refuse(storage: ShapeStorage, compacted: CompactedLog) -> None:
        raise InvalidRequest("it does not fit")

    with monkeypatch.context() as patched:
        patched.setattr(ShapeStorage, "install", refuse)
        with pytest.raises(InvalidRequest, match="does not fit"):
            bench.compact()
    assert _log_files(bench) == files
    assert bench.storage.failure is None
    assert bench.compact().outcome is CompactionOutcome.DONE
    bench.check()


def test_reports_are_kept_and_bounded() -> None:
    settings = CompactionSettings(keep_chunks=0, min_cleanable_ratio=0, reports_max=3)
    bench = CompactionBench(MemoryFileSystem(ManualClock()), settings=settings)
    created = []
    for _ in range(5):
        bench.change(40)
        created.append(bench.compact().to_json())
    kept = read_reports(bench.fs, bench.storage.directory)
    assert kept == created[-3:]
    assert kept[-1]["suffix"] == bench.storage.manifest.compacted
    with bench.fs.open_writable(f"{bench.storage.directory}/metadata/compactions.json") as file:
        file.truncate(5)
    with pytest.raises(Corrupt, match="not JSON"):
        read_reports(bench.fs, bench.storage.directory)
    bench.change(40)
    report = bench.compact()
    assert read_reports(bench.fs, bench.storage.directory) == [report.to_json()]


def test_figures_that_do_not_add_up_are_refused() -> None:
    balance = Balance(entries_in=3, merged=1, keys=1, rows=1, updates=1, entries_out=1, bytes_out=9)
    with pytest.raises(Unbalanced, match="add up"):
        balance.check("here")
    balance.superseded = 1
    balance.check("here")
    balance.controls_in = 1
    with pytest.raises(Unbalanced):
        balance.check("here")


def test_a_shape_is_compacted_once_at_a_time(bench: CompactionBench) -> None:
    bench.change(60)
    bench.storage.flush()
    target = bench.storage.compaction_target

    def again(keep_chunks: int) -> tuple[ShapeOffset, int] | None:
        with pytest.raises(Unavailable, match="being compacted"):
            bench.compactor.compact(bench.storage, now_ms=2)
        return target(keep_chunks)

    bench.storage.compaction_target = again  # type: ignore[method-assign]  # a hook into the middle
    assert bench.compact().outcome is CompactionOutcome.DONE


@pytest.mark.parametrize("memory_bytes", [1024, 1 << 20])
def test_a_compaction_that_is_to_end_does_so_at_its_next_step_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, memory_bytes: int
) -> None:
    settings = CompactionSettings(keep_chunks=0, min_cleanable_ratio=0, memory_bytes=memory_bytes)
    bench = CompactionBench(MemoryFileSystem(ManualClock()), settings=settings)
    bench.change(60)
    bench.storage.flush()
    bench.storage.close_chunk()
    files = _log_files(bench)
    check_open = Compactor._check_open
    outcomes: list[CompactionOutcome | None] = []
    while not outcomes or outcomes[-1] is None:
        checks = iter(range(1000))

        def end_in_time(compactor: Compactor, checks: Iterator[int] = checks) -> None:
            if next(checks) == len(outcomes):
                compactor.end()
            check_open(compactor)

        monkeypatch.setattr(Compactor, "_check_open", end_in_time)
        bench.compactor = Compactor(settings, Random(5))
        try:
            outcomes.append(bench.compact().outcome)
        except Closed:
            outcomes.append(None)
            assert _log_files(bench) == files
            assert not bench.fs.exists(f"{ROOT}/.tmp/{HANDLE}")
            assert read_reports(bench.fs, bench.storage.directory) == []
        bench.compactor.join()
        bench.check(sample=5)
    assert outcomes[-1] is CompactionOutcome.DONE
    assert len(outcomes) > (10 if memory_bytes == 1024 else 2)


def test_a_shape_with_more_dead_keys_than_rows_needs_a_new_snapshot() -> None:
    settings = CompactionSettings(resnapshot_entries=20)
    bench = CompactionBench(MemoryFileSystem(ManualClock()), settings=settings)
    for number in range(30):
        bench.put(f"row {number}", a=1)
        bench.put(f"row {number}", a=2)
    for number in range(30):
        bench.remove(f"row {number}")
        bench.put(f"row {number}", a=1)
        bench.put(f"row {number}", a=2)
    report = bench.compact()
    assert report.balance.entries_out == 90
    assert report.rows_min == 30
    assert not report.needs_new_snapshot(settings)
    for number in range(30):
        bench.remove(f"row {number}")
    report = bench.compact()
    assert (report.balance.rows, report.balance.deletes) == (0, 30)
    assert report.needs_new_snapshot(settings)
    small = bench.compact(is_forced=False)
    assert small.outcome is CompactionOutcome.NOTHING
    assert not small.needs_new_snapshot(settings)


def test_numbers_keep_their_digits(bench: CompactionBench) -> None:
    message = (
        b'{"key":"k","value":{"id":"k","n":%d.000e+07},"headers":{"operation":"update","lsn":"1"}}'
    )
    bench.storage.append(
        [ShapeEntry(ShapeOffset(tx, 0), b"k", UPDATE, message % tx) for tx in range(1, 80)]
    )
    report = bench.compact()
    assert report.boundary is not None
    body = b"".join(bench.storage.read(SNAPSHOT_END, report.boundary))
    assert body == (
        b'{"key":"k","value":{"id":"k","n":%d.000e+07},"headers":{"operation":"update"}}'
        % report.boundary.tx
    )


def test_updates_with_more_columns_than_a_table_starts_with_are_folded(
    bench: CompactionBench,
) -> None:
    columns = {f"column{number}": number for number in range(100)}
    bench.storage.append(
        [make_entry(ShapeOffset(tx, 0), UPDATE, "k", columns) for tx in range(1, 80)]
    )
    report = bench.compact()
    assert report.boundary is not None
    (message,) = read_messages(bench.storage, SNAPSHOT_END, report.boundary)
    assert message["value"] == columns
