"""What is fetched ahead of a reader, by how long it had to wait and where it stands."""

from typing import cast

from tests.support.remote_bench import RemoteBench, make_batches
from varve.tiering.read.extent_cache import Extent, ExtentCache, ExtentSource
from varve.tiering.read.object_file import LogObjectFile
from varve.tiering.read.read_ahead import ExtentSizes, ReadAhead, ReadPosition, ReadPositions

SIZES = ExtentSizes(first_min=100, first_max=1_000, near_max=800, ahead_min=100, ahead_max=400)


class FakeSource:
    """Remembers what was asked ahead, which is never fetched."""

    def __init__(self, limit_bytes: int = 100_000) -> None:
        self.is_slow = True
        self.ahead_max_bytes = limit_bytes // 4
        self.asked: list[tuple[str, int, int]] = []
        self.extents = ExtentCache(limit_bytes=limit_bytes)

    def read_ahead(self, key: str, start: int, end: int) -> Extent | None:
        reserved = self.extents.reserve_ahead(key, start, end)
        if reserved is None:
            return None
        if reserved[1]:
            self.asked.append((key[-5:], start, reserved[0].end))
        return reserved[0]


class Row:
    """A row of reads over two files of 10,000 and 5,050 bytes."""

    def __init__(self, *, window_max: int = 1_600, limit_bytes: int = 100_000) -> None:
        bench = RemoteBench()
        self.source = FakeSource(limit_bytes)
        source = cast(ExtentSource, self.source)
        segments = [bench.write(make_batches(0, 99)), bench.write(make_batches(198, 50))]
        self.files = [
            LogObjectFile(segment, f"{number}/log", source, fetch_bytes=1)
            for number, segment in enumerate(segments)
        ]
        self.ahead = ReadAhead(source, window_max=window_max, sizes=SIZES, next_file=self._next)
        bench.close()

    def _next(self, file: LogObjectFile) -> LogObjectFile | None:
        return self.files[1] if file is self.files[0] else None

    def read(self, position: int, *, number: int = 0, wait_ms: int = 0) -> Extent | None:
        """A read of 100 bytes; what it left behind."""
        file = self.files[number]
        extent = file.reserve(position, self.ahead.fetch_bytes(100))
        left = self.ahead.move_to(file, extent)
        self.source.extents.fill(extent, lambda key, start, end: memoryview(bytes(end - start)))
        if wait_ms:
            self.ahead.record_wait(wait_ms, 100)
        return left

    def asked(self) -> list[tuple[str, int, int]]:
        asked, self.source.asked = self.source.asked, []
        return asked


def test_a_first_read_asks_nothing_ahead_and_the_next_one_a_little() -> None:
    row = Row()
    row.read(0, wait_ms=30)
    assert row.asked() == []
    row.read(50)
    assert row.asked() == [("0/log", 100, 200)]
    row.read(60)
    assert row.asked() == []


def test_the_window_doubles_with_every_long_wait_up_to_its_limit() -> None:
    row = Row()
    row.read(0, wait_ms=30)
    widths = []
    for position in range(10, 90, 10):
        row.read(position, wait_ms=30)
        widths.append(sum(end - start for _, start, end in row.asked()))
    assert widths == [100, 100, 200, 400, 800, 0, 0, 0]


def test_a_short_wait_widens_nothing() -> None:
    row = Row()
    for position in range(0, 90, 10):
        row.read(position, wait_ms=1)
    assert row.asked() == []


def test_a_store_that_is_near_is_fetched_from_in_larger_steps_instead() -> None:
    row = Row()
    row.source.is_slow = False
    row.read(0, wait_ms=30)
    steps = []
    for position in range(10, 50, 10):
        steps.append(row.ahead.fetch_bytes(100))
        row.read(position, wait_ms=30)
    assert steps == [200, 400, 800, 800]
    assert row.asked() == []


def test_the_window_is_a_share_of_the_cache_at_most() -> None:
    row = Row(limit_bytes=1_200)
    for position in range(0, 90, 10):
        row.read(position, wait_ms=30)
    assert sum(end - start for _, start, end in row.asked()) == 300


def test_the_file_behind_follows_within_the_window() -> None:
    row = Row(window_max=1_000)
    row.read(9_000, wait_ms=30)
    for position in range(9_010, 9_090, 10):
        row.read(position, wait_ms=30)
    asked = row.asked()
    assert asked[-1][0] == "1/log"
    assert asked[-1][1:] == (0, 250)
    assert sum(end - start for _, start, end in asked) >= 1_000
    row.read(0, number=1)
    assert {key for key, _, _ in row.asked()} == {"1/log"}


def test_what_a_reader_leaves_is_told_once() -> None:
    row = Row()
    assert row.read(0) is None
    assert row.read(50) is None
    left = row.read(100)
    assert left is not None
    assert (left.start, left.end) == (0, 100)
    assert row.read(150) is None


def test_a_second_reader_of_the_row_behind_the_first_keeps_what_it_needs() -> None:
    row = Row()
    row.read(0)
    row.read(9_000)
    assert row.read(500) is None
    assert row.read(9_000) is None
    assert row.read(0, number=1) is None


def test_a_row_whose_bytes_were_pushed_out_narrows_its_window() -> None:
    row = Row(window_max=800)
    for position in range(0, 90, 10):
        row.read(position, wait_ms=30)
    asked = row.asked()
    assert sum(end - start for _, start, end in asked) == 800
    for key, start, end in asked:
        row.source.extents.cancel(row.source.extents.reserve(key, start, end))
    row.read(100)
    assert sum(end - start for _, start, end in row.asked()) == 400


def test_marks_of_a_row_are_its_last_ones_and_all_of_them_are_bounded() -> None:
    row, marks = Row(), ReadPositions()
    for offset in range(5):
        marks.put(offset, ReadPosition(row.files[0], offset, row.ahead), now_ms=0)
    assert [marks.find(offset) is not None for offset in range(5)] == [False] * 3 + [True] * 2
    for offset in range(10, 3_000):
        marks.put(offset, ReadPosition(row.files[0], offset, _new(row)), now_ms=0)
    assert marks.find(4) is None
    assert marks.find(2_999) is not None


def _new(row: Row) -> ReadAhead:
    source = cast(ExtentSource, row.source)
    return ReadAhead(source, window_max=0, sizes=SIZES, next_file=lambda file: None)


def test_a_row_is_followed_by_one_that_stands_behind_it_and_read_lately() -> None:
    row, marks = Row(), ReadPositions()
    other = _new(row)
    marks.put(1, ReadPosition(row.files[0], 0, other), now_ms=0)
    assert not marks.is_followed(row.ahead, 10, now_ms=0)
    marks.put(5, ReadPosition(row.files[0], 0, other), now_ms=0)
    assert marks.is_followed(row.ahead, 10, now_ms=0)
    assert not marks.is_followed(other, 10, now_ms=0)
    assert not marks.is_followed(row.ahead, 4, now_ms=0)
    assert not marks.is_followed(row.ahead, 10, now_ms=60_000)
    marks.clear()
    assert not marks.is_followed(row.ahead, 10, now_ms=0)
