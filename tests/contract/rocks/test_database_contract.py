"""Every engine keeps the promises of `varve.rocks.database`."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.window_bench import SMALL_MEMORY_BYTES
from varve.disk import FileSystem, MemoryFileSystem, RealFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Closed, Corrupt
from varve.rocks.database import Database, Databases, Entry, RocksDatabases
from varve.rocks.memory_database import MemoryDatabases


class Place:
    """An engine, and where its databases go."""

    def __init__(self, databases: Databases, file_system: FileSystem, root: str) -> None:
        self.databases = databases
        self.file_system = file_system
        self.path = f"{root}/db"

    def open(self) -> Database:
        return self.databases.open(self.path)


def _memory(_: Path) -> Place:
    file_system = MemoryFileSystem(ManualClock())
    return Place(MemoryDatabases(file_system), file_system, "/data")


def _rocks(path: Path) -> Place:
    return Place(RocksDatabases(memory_bytes=SMALL_MEMORY_BYTES), RealFileSystem(), str(path))


@pytest.fixture(params=[_memory, _rocks], ids=["memory", "rocksdb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    make: Callable[[Path], Place] = request.param
    return make(tmp_path)


@pytest.fixture
def database(place: Place) -> Iterator[Database]:
    database = place.open()
    yield database
    database.close()


def _fill(database: Database, count: int = 5) -> list[Entry]:
    entries = [(bytes([number]), str(number).encode()) for number in range(count)]
    database.write(entries)
    return entries


def test_what_was_written_is_read_back(database: Database) -> None:
    database.write([(b"a", b"1"), (b"b", b"")])
    assert database.get(b"a") == b"1"
    assert database.get(b"b") == b""
    assert database.get(b"c") is None


def test_many_are_answered_in_the_order_asked(database: Database) -> None:
    database.write([(b"a", b"1"), (b"c", b"3")])
    assert database.get_many([b"c", b"b", b"a", b"c"]) == [b"3", None, b"1", b"3"]
    assert database.get_many([]) == []


def test_the_later_put_of_a_batch_wins(database: Database) -> None:
    database.write([(b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (b"b", None), (b"b", None)])
    database.write([(b"c", None), (b"c", b"3")])
    assert list(database.scan(None, None, backward=False)) == [(b"a", b"2"), (b"c", b"3")]


def test_a_deleted_key_is_gone_and_may_come_again(database: Database) -> None:
    _fill(database)
    database.write([(b"\x02", None), (b"\x09", None)])
    assert database.get(b"\x02") is None
    assert [key for key, _ in database.scan(None, None, backward=False)] == [
        b"\x00",
        b"\x01",
        b"\x03",
        b"\x04",
    ]
    database.write([(b"\x02", b"again")])
    assert database.get(b"\x02") == b"again"


@pytest.mark.parametrize("backward", [False, True])
def test_bounds_of_a_scan_are_inclusive(database: Database, backward: bool) -> None:
    entries = _fill(database)
    expected: dict[tuple[bytes | None, bytes | None], range] = {
        (None, None): range(5),
        (b"\x01", b"\x03"): range(1, 4),
        (b"\x00\x01", b"\x02\xff"): range(1, 3),
        (b"\x04", None): range(4, 5),
        (None, b"\x00"): range(1),
        (b"\x05", None): range(0),
        (b"\x03", b"\x01"): range(0),
    }
    for (lower, upper), numbers in expected.items():
        wanted = [entries[number] for number in numbers]
        if backward:
            wanted.reverse()
        assert list(database.scan(lower, upper, backward=backward)) == wanted


def test_keys_order_as_unsigned_bytes(database: Database) -> None:
    keys = [b"\xff", b"\x7f", b"\x80", b"", b"\x7f\x00", b"\x00"]
    database.write([(key, b"v") for key in keys])
    assert [key for key, _ in database.scan(None, None, backward=False)] == sorted(keys)


def test_a_scan_shows_the_state_of_its_first_step(database: Database) -> None:
    _fill(database)
    scan = database.scan(None, None, backward=False)
    assert next(scan)[0] == b"\x00"
    database.write([(b"\x01", None), (b"\x02\x01", b"new")])
    assert [key for key, _ in scan] == [b"\x01", b"\x02", b"\x03", b"\x04"]


def test_a_closed_scan_has_no_more_entries(database: Database) -> None:
    _fill(database)
    scan = database.scan(None, None, backward=False)
    next(scan)
    scan.close()
    scan.close()
    assert list(scan) == []


def test_an_ended_scan_stays_ended(database: Database) -> None:
    _fill(database)
    scan = database.scan(None, None, backward=False)
    assert len(list(scan)) == 5
    database.write([(b"\x09", b"new")])
    assert list(scan) == []


def test_closing_ends_scans_that_are_held_and_frees_the_directory(place: Place) -> None:
    database = place.open()
    _fill(database)
    begun, fresh = (database.scan(None, None, backward=False) for _ in range(2))
    next(begun)
    database.close()
    assert list(begun) == list(fresh) == []
    reopened = place.open()
    assert len(list(reopened.scan(None, None, backward=True))) == 5
    reopened.close()


def test_only_scans_in_use_are_warned_of(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    database = place.open()
    _fill(database)
    ended, closed, fresh, begun = (database.scan(None, None, backward=False) for _ in range(4))
    list(ended)
    next(closed)
    closed.close()
    next(begun)
    database.close()
    assert [record.__dict__["count"] for record in caplog.records] == [1]
    assert list(fresh) == []


def test_a_scan_that_was_forgotten_holds_nothing(place: Place) -> None:
    database = place.open()
    _fill(database)
    next(database.scan(None, None, backward=False))
    database.close()
    place.open().close()


def test_every_use_after_close_is_refused(place: Place) -> None:
    database = place.open()
    database.close()
    database.close()
    uses: list[Callable[[], object]] = [
        lambda: database.get(b"a"),
        lambda: database.get_many([b"a"]),
        lambda: database.write([(b"a", b"1")]),
        lambda: database.scan(None, None, backward=False),
        database.flush,
        database.size,
    ]
    for use in uses:
        with pytest.raises(Closed, match="is closed: open the store again"):
            use()


def test_a_closed_database_opens_as_it_was(place: Place) -> None:
    database = place.open()
    _fill(database)
    database.flush()
    database.write([(b"\x01", None), (b"z", b"late")])
    database.close()
    reopened = place.open()
    keys = [key for key, _ in reopened.scan(None, None, backward=False)]
    assert keys == [b"\x00", b"\x02", b"\x03", b"\x04", b"z"]
    reopened.close()


def test_flushed_entries_take_room(database: Database) -> None:
    database.flush()
    before = database.size()
    database.write([(str(number).encode(), bytes(100)) for number in range(100)])
    database.flush()
    assert database.size() > before + 5_000


def test_a_file_in_place_of_the_directory_is_corrupt(place: Place) -> None:
    place.file_system.make_directory(place.path.rpartition("/")[0])
    with place.file_system.open_writable(place.path) as file:
        file.write_at(0, b"stray")
    with pytest.raises(Corrupt, match="open of"):
        place.open()


def test_databases_of_one_engine_serve_a_thread_each(place: Place) -> None:
    def work(number: int) -> list[bytes | None]:
        database = place.databases.open(f"{place.path}{number}")
        for at in range(50):
            database.write([(bytes([at, number]), bytes([number]))])
        next(database.scan(None, None, backward=True))
        database.flush()
        found = database.get_many([bytes([at, number]) for at in range(50)])
        database.close()
        return found

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(work, range(3))) == [[bytes([number])] * 50 for number in range(3)]


def test_databases_of_one_engine_are_apart(place: Place) -> None:
    first, second = place.open(), place.databases.open(place.path + "2")
    first.write([(b"a", b"1")])
    assert second.get(b"a") is None
    first.close()
    second.write([(b"a", b"2")])
    assert second.get(b"a") == b"2"
    second.close()
