"""The plainest window store: a dict, a stream time, and the two tests of the specification."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.support.window_bench import RETENTION_MS, SEGMENT_MS
from varve.windows.changelog import Changelog
from varve.windows.entries import WindowEntry, decode_window_key


@dataclass
class WindowModel:
    """What a store holds and shows; `entries` has all that is on disk, seen or not."""

    segment_ms: int
    retention_ms: int
    stream_time_ms: int = -1
    entries: dict[tuple[bytes, int], bytes] = field(default_factory=dict)
    segment_ids: set[int] = field(default_factory=set)
    expired_count: int = 0

    def put(self, key: bytes, value: bytes | None, time_ms: int) -> bool:
        self.stream_time_ms = max(self.stream_time_ms, time_ms)
        id = time_ms // self.segment_ms
        is_live = id >= self._first_live_id()
        if is_live:
            self.segment_ids.add(id)
        else:
            self.expired_count += 1
        self._cleanup()
        if is_live:
            self._write(key, value, time_ms)
        return is_live

    def remove(self, key: bytes, time_ms: int) -> None:
        self.stream_time_ms = max(self.stream_time_ms, time_ms)
        if time_ms // self.segment_ms in self.segment_ids:
            self._write(key, None, time_ms)

    def maintain(self, stream_time_ms: int) -> None:
        self.stream_time_ms = max(self.stream_time_ms, stream_time_ms)
        self._cleanup()

    def visible(self) -> list[WindowEntry]:
        """Sorted by key and time."""
        floor = self.stream_time_ms - self.retention_ms + 1
        return sorted(
            WindowEntry(key, time_ms, value)
            for (key, time_ms), value in self.entries.items()
            if time_ms >= floor
        )

    def fetched(
        self, first: bytes | None, last: bytes | None, from_ms: int, to_ms: int
    ) -> list[WindowEntry]:
        """Of what is visible, in the order of a range: segment, then composite key."""
        return self._ordered(
            entry
            for entry in self.visible()
            if from_ms <= entry.time_ms <= to_ms
            and (first is None or entry.key >= first)
            and (last is None or entry.key <= last)
        )

    def _ordered(self, entries: Iterable[WindowEntry]) -> list[WindowEntry]:
        return sorted(
            entries,
            key=lambda one: (
                one.time_ms // self.segment_ms,
                one.key + one.time_ms.to_bytes(8, "big"),
            ),
        )

    def _write(self, key: bytes, value: bytes | None, time_ms: int) -> None:
        if value is None:
            self.entries.pop((key, time_ms), None)
        else:
            self.entries[key, time_ms] = value

    def _cleanup(self) -> None:
        first = self._first_live_id()
        self.segment_ids = {id for id in self.segment_ids if id >= first}
        self.entries = {
            (key, time_ms): value
            for (key, time_ms), value in self.entries.items()
            if time_ms // self.segment_ms >= first
        }

    def _first_live_id(self) -> int:
        return (self.stream_time_ms - self.retention_ms) // self.segment_ms


def replay(changelog: Changelog) -> list[WindowEntry]:
    """What the plainest store shows after the writes of a changelog."""
    model = WindowModel(SEGMENT_MS, RETENTION_MS)
    for batch in changelog.read(changelog.start_offset):
        for key, value in batch.puts:
            model.put(decode_window_key(key).key, value, decode_window_key(key).time_ms)
    return model.visible()
