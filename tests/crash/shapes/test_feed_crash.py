"""What a feed has after `kill -9`, and with a journal that is torn, lost or cut.

Carries S4.
"""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.crash_images import crash_images, named, record
from tests.support.feed_writer import make_feed, make_source
from tests.support.memory_topic import MemoryTopic
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.shapes.feed.changes import Change
from varve.shapes.feed.journal import ENTRY_BYTES, Journal, OffsetSpan, decode_journal
from varve.shapes.feed.row import Row
from varve.shapes.feed.table_store import TableStore
from varve.shapes.feed.topic_feed import TopicFeed
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem
from varve.topics import HistoryMark

_ROOT = Path(__file__).parents[3]
_SPANS = [OffsetSpan(0, 0, 5, 1), OffsetSpan(1, 0, 2, 6), OffsetSpan(0, 5, 9, 8)]


def test_a_torn_journal_keeps_the_ranges_that_are_whole() -> None:
    data = b"".join(one.encode() for one in _SPANS)
    for size in range(len(data) + 1):
        assert decode_journal(data[:size])[0] == _SPANS[: size // ENTRY_BYTES]


def test_a_damaged_range_ends_the_journal() -> None:
    data = b"".join(one.encode() for one in _SPANS)
    for position in range(ENTRY_BYTES, 2 * ENTRY_BYTES):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        assert decode_journal(bytes(damaged))[0] == _SPANS[:1]


@pytest.mark.parametrize("transaction", [5, 7])
def test_a_range_that_does_not_continue_the_one_before_ends_the_journal(transaction: int) -> None:
    apart = _SPANS[1]._replace(first_tx=transaction)
    data = b"".join(one.encode() for one in (_SPANS[0], apart, _SPANS[2]))
    assert decode_journal(data)[0] == _SPANS[:1]


def test_a_journal_of_ranges_alone_is_read() -> None:
    """As versions without marks wrote it."""
    data = bytes.fromhex("00000000000000000000000000000000000000050000000000000001" + "2f535011")
    assert len(data) == ENTRY_BYTES
    ranges, marks = decode_journal(data)
    assert (ranges, marks) == ([OffsetSpan(0, 0, 5, 1)], {})


def test_a_journal_keeps_the_last_mark_of_each_partition() -> None:
    fs = MemoryFileSystem(ManualClock())
    journal = Journal(fs, "tables/orders/journal")
    journal.open()
    first, last = (
        HistoryMark(base_offset=at, last_offset=at + 2, leader_epoch=-1, crc=4_000_000_000)
        for at in (0, 3)
    )
    journal.write_marks({0: first, 7: first})
    journal.append([OffsetSpan(0, 0, 3, 1)])
    journal.write_marks({0: last})
    again = Journal(fs, "tables/orders/journal")
    again.open()
    assert again.marks == {0: last, 7: first}
    again.restart(4, {0: first, 7: first})
    assert (again.spans, again.marks) == ([], {0: last})
    again.restart(4, {0: last})
    with fs.open_writable("tables/orders/journal") as file:
        assert file.size() == 0


def test_a_cut_journal_keeps_every_range_that_the_table_lacks_in_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("varve.shapes.feed.journal._CUT_BYTES", 1)
    fs = MemoryFileSystem(ManualClock())
    journal = Journal(fs, "tables/orders/journal")
    journal.open()
    journal.append(_SPANS)
    for next_tx, kept in ((_SPANS[0].next_tx - 1, _SPANS), (_SPANS[0].next_tx, _SPANS[1:])):
        journal.cut(next_tx)
        again = Journal(fs, "tables/orders/journal")
        again.open()
        assert again.spans == kept


def _use_journal(fs: FaultyFileSystem, synced: list[OffsetSpan]) -> None:
    """Opens a journal, adds to it and cuts it; `synced` has what must be there from then on."""
    journal = Journal(fs, "tables/orders/journal")
    journal.open()
    for one in _SPANS:
        journal.append([one])
        synced.append(one)
    synced[:] = _SPANS[1:]
    journal.restart(6, {})


def test_a_power_loss_at_any_step_keeps_what_was_synced() -> None:
    fs = FaultyFileSystem(ManualClock())
    synced: list[OffsetSpan] = []
    for image in crash_images(
        record(lambda: _use_journal(fs, synced), lambda: tuple(synced), disk=fs)
    ):
        with named(image):
            again = Journal(image.disk, "tables/orders/journal")
            again.open()
            assert set(image.state) <= set(again.spans)
            assert again.spans in [_SPANS[:count] for count in range(4)] + [_SPANS[1:]]


def test_a_journal_opened_after_a_failed_sync_keeps_all_that_it_read() -> None:
    fs = FaultyFileSystem(ManualClock())
    journal = Journal(fs, "tables/orders/journal")
    journal.open()
    journal.append(_SPANS[:1])
    fs.fail_at(fs.steps + 2, OSError(errno.EIO, "the disk"))
    with pytest.raises(OSError, match="the disk"):
        journal.append(_SPANS[1:2])
    journal.open()
    assert journal.spans == _SPANS[:2]  # which is given from now on
    again = Journal(fs.after_crash(CrashMode.LOSE_UNSYNCED, 1), "tables/orders/journal")
    again.open()
    assert again.spans == _SPANS[:2]


def _poll_all(feed: TopicFeed) -> list[Change]:
    changes: list[Change] = []
    while not feed.is_caught_up:
        for transaction in feed.poll(max_records=11, wait_ms=0):
            changes += transaction.changes
    return changes


def _small() -> MemoryTopic:
    source = MemoryTopic(partitions=2)
    for number in range(20):
        source.append(number % 2, b"%d" % (number % 4), b'{"n":%d}' % number)
    return source


def test_a_journal_that_is_lost_behind_the_table_is_begun_anew(tmp_path: Path) -> None:
    source = _small()
    feed = make_feed(source, str(tmp_path))
    feed.open()
    _poll_all(feed)
    feed.checkpoint(feed.mark())
    position = feed.position
    feed.close()
    (tmp_path / "orders" / "journal").unlink()
    source.append(1, b"1", b'{"n":100}')
    again = make_feed(source, str(tmp_path))
    assert again.open() is None
    (only,) = _poll_all(again)
    assert only.offset.tx == position.tx + 1
    again.close()


def test_a_journal_cut_in_the_middle_does_not_go_on_from_the_table(tmp_path: Path) -> None:
    source = _small()
    feed = make_feed(source, str(tmp_path))
    feed.open()
    feed.checkpoint(feed.mark())
    _poll_all(feed)
    feed.close()
    path = tmp_path / "orders" / "journal"
    entries = path.read_bytes()
    first = next(entry for entry in decode_journal(entries)[0]).encode()
    path.write_bytes(entries.replace(first, b""))
    reason = make_feed(source, str(tmp_path)).open()
    assert reason is not None
    assert "the journal begins at" in reason.text


def _state_up_to(source: MemoryTopic, positions: dict[int, int]) -> dict[str, Row]:
    cut = MemoryTopic(partitions=len(positions))
    for number, end in positions.items():
        cut.logs[number] = [one for one in source.logs[number] if one[0] < end]
    return {
        f'"public"."orders"/"{key.decode()}"': {
            "key": b'"' + key + b'"',
            "n": value[len('{"n":') : -1],
        }
        for key, value in cut.state().items()
    }


def _feed_until_killed(path: Path, seed: int, *, kill_after: int) -> list[str]:
    lines = []
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.feed_writer", str(path), str(seed)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path])},
    ) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if len(lines) == kill_after:
                process.send_signal(signal.SIGKILL)
        watchdog.cancel()
    return [line for line in lines if line.endswith("\n")]


def _positions_on_disk(path: Path) -> dict[int, int]:
    store = TableStore(str(path / "orders" / "rows"))
    state = store.read_state()
    store.close()
    assert state is not None
    return dict(state.positions)


@pytest.mark.parametrize("kill_after", [21, 60])
def test_a_killed_feed_has_rows_and_positions_of_one_moment(
    tmp_path: Path, kill_after: int
) -> None:
    lines = _feed_until_killed(tmp_path, kill_after, kill_after=kill_after)
    done = max(int(line.split()[1]) for line in lines if line.startswith("done"))
    asked = max(int(line.split()[1]) for line in lines if line.startswith("asked"))
    source = make_source(kill_after)
    positions = _positions_on_disk(tmp_path)
    feed = make_feed(source, str(tmp_path))
    assert feed.open() is None
    assert done <= feed.position.tx
    assert feed.position.tx <= max(asked, done) + 2 * 7
    with feed.view() as view:
        assert dict(view.rows()) == _state_up_to(source, positions)
    _poll_all(feed)
    with feed.view() as view:
        assert dict(view.rows()) == _state_up_to(source, dict(enumerate(source.ends)))
    assert feed.lag == 0
    feed.close()
