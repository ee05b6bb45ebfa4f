"""The calls of a window store, against the same calls of RocksDB."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rocksdict import RdictIter

from benchmarks.baselines import BASE_TIMESTAMP_MS
from benchmarks.measure import Contest, Scale
from benchmarks.sizes import SizeUnit
from benchmarks.windows.bare_store import BareStore
from benchmarks.windows.events import Events, make_events
from benchmarks.workspace import Workspace
from varve.windows import WindowSettings, WindowStore, open_window_store
from varve.windows.entries import encode_window_key

_SEGMENT_MS: Final = 60_000
_LONG_MS: Final = 1 << 40
_VALUE: Final = bytes(16)
_READ_COUNT_MAX: Final = 10_000
_QUICK_READ_COUNT_MAX: Final = 2_000
_FETCH_MS: Final = 30_000
_ENTRY_BYTES: Final = 80

Run = Callable[[], None]


class WindowMeasure:
    """Size: entries of the store."""

    name = "window"
    title = "put, get and fetch of a window store, against RocksDB without varve"
    size_unit = SizeUnit.COUNT

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (2_000, 10_000) if quick else (20_000, 200_000)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        workspace.require(size * _ENTRY_BYTES * 8)
        events = make_events(size)
        step = max(1, size // (_QUICK_READ_COUNT_MAX if scale.is_quick else _READ_COUNT_MAX))
        asked = list(zip(events.ids[::step], events.times[::step], strict=True))
        with (
            workspace.directory("window") as ours,
            workspace.directory("bare") as theirs,
            _open(ours) as store,
            BareStore(theirs) as bare,
        ):
            _put(store, events)
            _put_bare(bare, events)
            store.flush()
            bare.flush()

            def rate(count: int, run: Run) -> float:
                start = scale.ticker()
                run()
                return count / (scale.ticker() - start)

            def put() -> float:
                with workspace.directory("put") as directory, _open(directory) as fresh:
                    return rate(size, lambda: _put(fresh, events))

            def put_bare() -> float:
                with workspace.directory("put") as directory, BareStore(directory) as fresh:
                    return rate(size, lambda: _put_bare(fresh, events))

            pairs: list[tuple[str, Callable[[], float], Callable[[], float], str]] = [
                ("put", put, put_bare, "into an empty store, not flushed"),
                (
                    "get",
                    lambda: rate(len(asked), lambda: _get(store, asked)),
                    lambda: rate(len(asked), lambda: _get_bare(bare, asked)),
                    f"{len(asked):,} entries that are there, by key and time",
                ),
                (
                    "fetch",
                    lambda: rate(len(asked), lambda: _fetch(store, asked)),
                    lambda: rate(len(asked), lambda: _fetch_bare(bare, asked)),
                    f"{len(asked):,} keys, {_FETCH_MS // 1000} s before and after; a seek in each "
                    "segment",
                ),
            ]
            yield [
                Contest(
                    f"{self.name}_{name}", "calls/s", one, other, None, note, repeat_count_max=5
                )
                for name, one, other, note in pairs
            ]


@contextmanager
def _open(directory: Path) -> Iterator[WindowStore]:
    settings = WindowSettings(name="s", retention_ms=_LONG_MS, segment_ms=_SEGMENT_MS)
    with open_window_store(settings, directory=str(directory / "s")) as store:
        yield store


def _put(store: WindowStore, events: Events) -> None:
    for id, time in zip(events.ids, events.times, strict=True):
        store.put(id, _VALUE, time)


def _put_bare(bare: BareStore, events: Events) -> None:
    for id, time in zip(events.ids, events.times, strict=True):
        bare.get(time // _SEGMENT_MS)[encode_window_key(id, time)] = _VALUE


def _get(store: WindowStore, asked: list[tuple[bytes, int]]) -> None:
    for id, time in asked:
        _expect(store.get(id, time) == _VALUE, id)


def _get_bare(bare: BareStore, asked: list[tuple[bytes, int]]) -> None:
    for id, time in asked:
        found = bare.find(time // _SEGMENT_MS).get(encode_window_key(id, time))
        _expect(found == _VALUE, id)


def _fetch(store: WindowStore, asked: list[tuple[bytes, int]]) -> None:
    for id, time in asked:
        with store.fetch(id, time - _FETCH_MS, time + _FETCH_MS) as entries:
            _expect(any(entry.time_ms == time for entry in entries), id)


def _fetch_bare(bare: BareStore, asked: list[tuple[bytes, int]]) -> None:
    for id, time in asked:
        low, high = max(BASE_TIMESTAMP_MS // 2, time - _FETCH_MS), time + _FETCH_MS
        found: list[bytes] = []
        for segment in range(low // _SEGMENT_MS, high // _SEGMENT_MS + 1):
            database = bare.find(segment)
            if database is not None:
                found += _scan(database, encode_window_key(id, low), encode_window_key(id, high))
        _expect(encode_window_key(id, time) in found, id)


def _scan(database: Any, lower: bytes, upper: bytes) -> list[bytes]:
    found = []
    iterator: RdictIter = database.iter()
    iterator.seek(lower)
    while iterator.valid() and (key := iterator.key()) <= upper:
        iterator.value()
        found.append(key)
        iterator.next()
    return found


def _expect(is_there: bool, id: bytes) -> None:
    if not is_there:
        raise AssertionError(f"{id.hex()} is not found")
