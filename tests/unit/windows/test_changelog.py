"""Changelogs: what is logged, restored, and followed by a standby."""

import logging
import random
from collections.abc import Iterator
from typing import Any

import pytest

import varve
from tests.support.memory_changelog import MemoryChangelog
from tests.support.window_bench import (
    WindowBench,
    changelog_of,
    logged_writes,
    memory_bench,
    put_all,
    times,
    window_settings,
)
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import (
    Corrupt,
    OffsetOutOfRange,
    RecordTooLarge,
    Unavailable,
)
from varve.foundation.settings import LONG_MAX
from varve.windows.changelog import (
    Changelog,
    LoggedWrite,
    RestoreProgress,
    TopicChangelog,
    changelog_settings,
    create_changelog_topic,
)
from varve.windows.entries import encode_window_key


def write(time_ms: int, value: bytes | None = b"v", key: bytes = b"k") -> LoggedWrite:
    return LoggedWrite(encode_window_key(key, time_ms), value, time_ms)


@pytest.fixture
def topics() -> Iterator[varve.Store]:
    file_system = MemoryFileSystem(ManualClock())
    with varve.open("/log", fs=file_system, clock=ManualClock(), maintain=False) as store:
        yield store


@pytest.fixture(params=["memory", "topic"])
def changelog(request: pytest.FixtureRequest, topics: varve.Store) -> Changelog:
    if request.param == "memory":
        return MemoryChangelog()
    topic = create_changelog_topic(topics, "s-changelog", window_settings(), partitions=2)
    return TopicChangelog(topic, 1)


@pytest.fixture
def bench() -> WindowBench:
    return memory_bench()


# The changelog itself


def test_what_was_appended_is_read_from_any_offset(changelog: Changelog) -> None:
    assert (changelog.start_offset, changelog.end_offset) == (0, 0)
    assert changelog.append([write(5, b"1"), write(6, None)]) == 2
    assert changelog.append([write(7, b"")]) == 3
    changelog.flush()
    expected = [(item.key, item.value) for item in (write(5, b"1"), write(6, None), write(7, b""))]
    for start in range(4):
        batches = list(changelog.read(start))
        assert [put for batch in batches for put in batch.puts] == expected[start:]
        assert [batch.next_offset for batch in batches][-1:] == ([3] if start < 3 else [])


@pytest.mark.parametrize("offset", [-1, 1])
def test_an_offset_outside_is_refused(changelog: Changelog, offset: int) -> None:
    with pytest.raises(OffsetOutOfRange, match="restore from the start"):
        changelog.read(offset)


def test_a_topic_of_a_changelog_is_bounded_by_deletion() -> None:
    settings = changelog_settings(window_settings())
    assert settings["cleanup.policy"] == "compact,delete"
    assert settings["retention.ms"] == 25_000 + 24 * 3_600_000
    assert settings["message.timestamp.type"] == "CreateTime"
    assert settings["segment.ms"] == 600_000
    assert changelog_settings(window_settings(retain_duplicates=True))["cleanup.policy"] == "delete"
    assert changelog_settings(window_settings(retention_ms=LONG_MAX))["retention.ms"] == LONG_MAX


def test_a_record_without_a_key_is_no_write(topics: varve.Store) -> None:
    topic = create_changelog_topic(topics, "other", window_settings(retain_duplicates=True))
    topic.append(value=b"foreign")
    with pytest.raises(Corrupt, match="other-0: the record at 0 has no key"):
        list(TopicChangelog(topic, 0).read(0))


# Logging


def test_writes_are_logged_as_they_are_stored(bench: WindowBench, changelog: Changelog) -> None:
    bench.changelog = changelog
    with bench.store() as store:
        store.put(b"k", b"1", 5)
        store.put(b"k", b"2", 6)
        store.put(b"k", None, 5)
        store.remove(b"k", 6)
    assert logged_writes(changelog) == [
        (encode_window_key(b"k", 5), b"1"),
        (encode_window_key(b"k", 6), b"2"),
        (encode_window_key(b"k", 5), None),
        (encode_window_key(b"k", 6), None),
    ]


def test_the_log_is_written_many_at_a_time(bench: WindowBench) -> None:
    store = bench.store(pending_count_max=3)
    put_all(store, [1, 2])
    assert bench.changelog.end_offset == 0
    put_all(store, [3, 4])
    assert bench.changelog.end_offset == 3
    assert store.commit() == 4
    assert store.commit() == 4


def test_a_commit_syncs_the_changelog(bench: WindowBench, topics: varve.Store) -> None:
    """Its caller commits the input next, and a checkpoint names the end."""
    topic = create_changelog_topic(topics, "s-changelog", window_settings())
    bench.changelog = TopicChangelog(topic, 0)
    store = bench.store()
    put_all(store, [1, 2])
    assert store.commit() == topic.partition(0).log.recovery_point == 2
    store.close()


def test_an_entry_that_the_changelog_cannot_take_is_refused(
    bench: WindowBench, topics: varve.Store
) -> None:
    topic = create_changelog_topic(topics, "s-changelog", window_settings())
    bench.changelog = TopicChangelog(topic, 0)
    store, size_max = bench.store(), bench.changelog.write_bytes_max
    with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
        store.put(b"k", bytes(size_max), 1)
    assert store.put(b"k", random.Random(1).randbytes(size_max - 64), 1)
    store.close()


class _FailingChangelog(MemoryChangelog):
    is_failing = False

    def append(self, writes: Any) -> int:
        if self.is_failing:
            raise Unavailable("the changelog is down")
        return super().append(writes)


def test_a_checkpoint_claims_nothing_that_is_not_in_the_changelog(bench: WindowBench) -> None:
    changelog = bench.changelog = _FailingChangelog()
    store = bench.store()
    put_all(store, [1])
    store.checkpoint()
    changelog.is_failing = True
    put_all(store, [2])
    with pytest.raises(Unavailable, match="down"):
        store.close()
    changelog.is_failing = False
    with bench.store() as again:
        assert again.get(b"k", 1) == b"1"
    assert changelog.end_offset == 1


# Restore


def test_a_restart_restores_only_what_came_after_the_checkpoint(
    bench: WindowBench, changelog: Changelog
) -> None:
    bench.changelog = changelog
    with bench.store() as store:
        put_all(store, [1, 2, 3])
    changelog.append([write(4), write(5)])
    store = bench.store()
    progress = store.restored
    assert (progress.written_count, progress.offset, progress.lag) == (2, 5, 0)
    store.close()
    assert bench.store().restored.written_count == 0


def test_stream_time_is_raised_by_a_whole_batch_before_anything_is_written(
    bench: WindowBench,
) -> None:
    store = bench.local()
    assert store.restore_batch([(item.key, item.value) for item in (write(5), write(99_000))]) == 1
    assert bench.starts() == [90_000]
    assert store.expired_count == 0


def test_progress_is_told_per_batch(bench: WindowBench) -> None:
    reported: list[RestoreProgress] = []
    bench.on_progress = reported.append
    changelog = changelog_of(map(write, range(10)), batch_count_max=2)
    bench.local().restore(changelog, start_offset=0, batch_count=4)
    assert [progress.offset for progress in reported] == [4, 8, 10]
    assert [progress.lag for progress in reported] == [6, 2, 0]
    assert [progress.written_count for progress in reported] == [4, 8, 10]


def test_a_foreign_record_in_the_changelog_is_corrupt(bench: WindowBench) -> None:
    changelog = changelog_of([LoggedWrite(b"short", b"v", 5)])
    with pytest.raises(Corrupt, match="window key of 5 bytes"):
        bench.local().restore(changelog, start_offset=0)


def test_a_checkpoint_beyond_the_changelog_wipes(
    bench: WindowBench, caplog: pytest.LogCaptureFixture
) -> None:
    with bench.store() as store:
        put_all(store, [1, 2, 99_000])
    bench.changelog = changelog_of([write(5)])
    with caplog.at_level(logging.WARNING), bench.store() as store:
        assert times(store.all()) == [5]
        assert store.stream_time_ms == 5
    assert "wiped and restored" in caplog.text


def test_a_changelog_that_does_not_reach_back_wipes(bench: WindowBench) -> None:
    """A deletion may lie in what is missing."""
    with bench.store() as store:
        put_all(store, [1, 2])
    bench.changelog.append([write(1, None), write(3), write(4)])
    assert isinstance(bench.changelog, MemoryChangelog)
    bench.changelog.start_offset = 3
    with bench.store() as store:
        assert times(store.all()) == [3, 4]


def test_damage_found_by_a_read_is_rebuilt(bench: WindowBench) -> None:
    store = bench.store()
    put_all(store, [1, 2, 3])
    store.commit()
    put_all(store, [4])
    store.rebuild(Corrupt("a block is damaged"))
    assert store.restored.written_count == 4
    assert times(store.all()) == [1, 2, 3, 4]
    store.close()


def test_the_store_is_opened_from_a_directory_and_a_topic(
    bench: WindowBench, topics: varve.Store
) -> None:
    from varve.windows import open_window_store

    settings = window_settings()
    changelog = TopicChangelog(create_changelog_topic(topics, "c", settings), 0)
    options: dict[str, Any] = {
        "directory": bench.directory,
        "databases": bench.databases,
        "file_system": bench.file_system,
        "clock": bench.clock,
    }
    with open_window_store(settings, changelog=changelog, **options) as store:
        put_all(store, [1, 2])
    bench.file_system.remove_tree(bench.directory)
    with open_window_store(settings, changelog=changelog, **options) as store:
        assert times(store.all()) == [1, 2]
    with open_window_store(settings, **options) as store:
        assert times(store.all()) == [1, 2]
