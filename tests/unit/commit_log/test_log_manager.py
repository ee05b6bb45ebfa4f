"""Several log directories: placement, failure of one, maintenance of all."""

import errno
import random
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.log_bench import BROKEN, NO_ROOM, make_batch, read_all
from varve.commit_log import Log, LogManager, LogSettings, StoreSettings, TopicPartition
from varve.commit_log.offset_checkpoints import decode_offsets
from varve.disk import RealFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import (
    Corrupt,
    DirectoryOffline,
    InvalidRequest,
    Locked,
    NotFound,
    StoreError,
    Unavailable,
)
from varve.testing.faulty_disk import FaultyFileSystem

ID = UUID(int=0x1234_5678_9ABC_4DEF_8123_4567_89AB_CDEF)


def partition(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


class Stores:
    """Opens stores on one faulty disk."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.fs = FaultyFileSystem(clock)
        self.topics: dict[str, Any] = {}

    def open(self, *paths: str, **settings: Any) -> LogManager:
        return self.make(*paths, **settings).open()

    def make(self, *paths: str, **settings: Any) -> LogManager:
        return LogManager(
            paths or ("d1", "d2"),
            fs=self.fs,
            clock=self.clock,
            random=random.Random(5),
            settings=StoreSettings(**settings),
            topic_settings=lambda topic: LogSettings(**self.topics),
        )

    def offsets(self, path: str, name: str) -> dict[TopicPartition, int]:
        return decode_offsets(self.fs.read(f"{path}/{name}-offset-checkpoint"), where=name)


@pytest.fixture
def stores(clock: ManualClock) -> Stores:
    return Stores(clock)


def fill(store: LogManager, number: int = 0, count: int = 2) -> Log:
    log = store.create(partition(number), ID)
    for _ in range(count):
        log.append(make_batch())
    return log


def home(store: LogManager, number: int) -> str:
    directory = store.directory_of(partition(number))
    assert directory is not None
    return directory.path


# Placement


def test_new_partitions_go_where_the_fewest_are(stores: Stores) -> None:
    store = stores.open()
    for number in range(6):
        fill(store, number)
    assert sorted(home(store, number) for number in range(6)) == ["d1"] * 3 + ["d2"] * 3


def test_a_directory_added_later_fills_up_first(stores: Stores) -> None:
    with stores.make("d1") as store:
        for number in range(3):
            fill(store, number)
    store = stores.open("d1", "d2")
    for number in range(3, 6):
        assert fill(store, number)
        assert home(store, number) == "d2"


def test_an_existing_partition_stays_where_it_is(stores: Stores) -> None:
    with stores.make("d1") as store:
        fill(store)
    store = stores.open("d2", "d1")
    assert store.create(partition(0), ID).end_offset == 2
    assert home(store, 0) == "d1"


def test_a_failing_directory_goes_offline_and_the_next_is_tried(stores: Stores) -> None:
    store = stores.open()
    stores.fs.fail_under("d1", BROKEN)
    log = fill(store)
    assert home(store, 0) == "d2"
    assert log.end_offset == 2
    assert store.directories[0].failure is not None


def test_too_many_open_files_refuse_a_creation_and_take_nothing_offline(stores: Stores) -> None:
    store = stores.open("d1")
    stores.fs.fail_at(stores.fs.steps + 1, OSError(errno.EMFILE, "Too many open files"))
    with pytest.raises(Unavailable, match="ulimit -n"):
        fill(store)
    assert store.directories[0].failure is None
    assert fill(store).end_offset == 2


def test_creation_fails_when_no_directory_is_left(stores: Stores) -> None:
    store = stores.open()
    for path in ("d1", "d2"):
        stores.fs.fail_under(path, BROKEN)
    with pytest.raises(DirectoryOffline):
        fill(store)


def test_unless_it_is_new_no_partition_is_made_while_a_directory_is_offline(
    stores: Stores,
) -> None:
    store = stores.open()
    store.directories[0].health.fail(DirectoryOffline("broken"))
    with pytest.raises(Unavailable, match="offline"):
        store.create(partition(0), ID, is_new=False)
    assert store.create(partition(0), ID).end_offset == 0


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "x" * 250])
def test_names_kafka_would_refuse_are_refused(stores: Stores, topic: str) -> None:
    with pytest.raises(InvalidRequest):
        stores.open().create(partition(0, topic), ID)


def test_what_went_before_a_failing_deletion_is_removed_in_time(stores: Stores) -> None:
    store = stores.open("d1")
    for number in range(3):
        fill(store, number)
    stores.fs.fail_at(stores.fs.steps + 2, NO_ROOM)
    with pytest.raises(StoreError):
        store.delete(*(partition(number) for number in range(3)))
    assert store.partitions == [partition(1), partition(2)]
    store.delete(partition(1), partition(2))
    stores.clock.advance(60_000)
    store.run_once(stores.clock.now_ms())
    assert [info.name for info in stores.fs.scan("d1") if info.is_directory] == []


def test_partitions_that_go_together_wait_for_the_disk_once(stores: Stores) -> None:
    store = stores.open()
    for number in range(8):
        fill(store, number)
    first = home(store, 0)
    before = stores.fs.steps
    store.delete(partition(0))
    steps_of_one = stores.fs.steps - before
    assert len(stores.offsets(first, "recovery-point")) == 3
    before = stores.fs.steps
    store.delete(*(partition(number) for number in range(1, 8)))
    # Of a partition's own is the renaming; the rest is once for each of the two directories.
    assert stores.fs.steps - before == 2 * (steps_of_one - 1) + 7
    assert store.partitions == []
    assert [stores.offsets(path, "recovery-point") for path in ("d1", "d2")] == [{}, {}]


@pytest.mark.parametrize("paths", [(), ("d", "d")])
def test_directories_are_given_once_each(stores: Stores, paths: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest, match="each once"):
        LogManager(paths, fs=stores.fs, clock=stores.clock, random=random.Random())


@pytest.mark.parametrize("paths", [("d", "d/e"), ("x", "d/e/f", "d/"), ("d", "./d"), ("/", "/d")])
def test_directories_lie_beside_each_other(stores: Stores, paths: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest, match="be or contain the other"):
        stores.open(*paths)
    assert stores.fs.names("/") == []


def test_directories_that_begin_alike_are_beside_each_other(stores: Stores) -> None:
    assert len(stores.open("d", "d-1", "e/d").directories) == 3


def test_a_link_leads_to_no_directory_inside_another(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "d")
    paths = [str(tmp_path / "d"), str(tmp_path / "link" / "e")]
    with pytest.raises(InvalidRequest, match="be or contain the other"):
        LogManager(paths, fs=RealFileSystem(), clock=clock, random=random.Random())


# Opening


def test_a_partition_in_two_directories_is_fatal(stores: Stores) -> None:
    with stores.make() as store:
        fill(store)
        path = home(store, 0)
    twin = {"d1": "d2", "d2": "d1"}[path]
    stores.fs.make_directory(f"{twin}/t-0")
    for name in stores.fs.names(f"{path}/t-0"):
        with stores.fs.open_writable(f"{twin}/t-0/{name}") as file:
            file.write_at(0, stores.fs.read(f"{path}/t-0/{name}"))
    for _ in range(2):
        with pytest.raises(Corrupt, match="t-0 is in both d1 and d2"):
            stores.open()


def test_a_directory_in_use_is_fatal_and_the_others_are_given_back(stores: Stores) -> None:
    store = stores.open("d2")
    with pytest.raises(Locked):
        stores.open("d1", "d2")
    stores.open("d1").close()
    store.close()


def test_a_directory_that_cannot_be_opened_goes_offline_alone(stores: Stores) -> None:
    with stores.make() as store:
        for number in range(4):
            fill(store, number)
        lost = [number for number in range(4) if home(store, number) == "d1"]
    stores.fs.fail_under("d1", BROKEN)
    store = stores.open()
    served = [number for number in range(4) if number not in lost]
    for number in served:
        assert read_all(store.get(partition(number))) == [0, 1]
    for number in lost:
        with pytest.raises(Unavailable, match="d1"):
            store.get(partition(number))


def test_opening_fails_when_no_directory_can_be_opened(stores: Stores) -> None:
    for path in ("d1", "d2"):
        stores.fs.fail_under(path, BROKEN)
    with pytest.raises(DirectoryOffline):
        stores.open()


def test_a_foreign_directory_keeps_the_store_from_opening(stores: Stores) -> None:
    stores.fs.make_directory("d1/lost+found")
    with pytest.raises(Corrupt, match="d1"):
        stores.open()


# Serving


def test_an_unknown_partition_is_not_found(stores: Stores) -> None:
    with pytest.raises(NotFound, match="t-0"):
        stores.open().get(partition(0))


def test_an_unreadable_partition_says_why(stores: Stores) -> None:
    with stores.make("d1") as store:
        fill(store)
    with stores.fs.open_writable("d1/t-0/partition.metadata") as file:
        file.write_at(0, b"9")
    store = stores.open("d1")
    assert store.partitions == [partition(0)]
    with pytest.raises(Corrupt, match=r"partition\.metadata"):
        store.get(partition(0))
    with pytest.raises(Corrupt, match=r"partition\.metadata"):
        store.create(partition(0), ID)


def test_a_partition_that_is_deleted_meanwhile_is_not_found(stores: Stores) -> None:
    store = stores.make("d1")
    fill(store)
    (directory,) = store.directories
    store.directory_of = lambda partition: directory  # type: ignore[method-assign]
    store.delete(partition(0))
    with pytest.raises(NotFound, match="just deleted"):
        store.get(partition(0))


def test_one_directorys_failure_leaves_the_others_partitions_working(stores: Stores) -> None:
    store = stores.open()
    logs = {home(store, n): log for n in range(2) if (log := fill(store, n))}
    stores.fs.fail_under("d1", BROKEN)
    with pytest.raises(DirectoryOffline):
        logs["d1"].append(make_batch())
    logs["d2"].append(make_batch())
    store.run_once(stores.clock.now_ms() + 10**6)
    assert read_all(logs["d2"]) == [0, 1, 2]
    assert stores.offsets("d2", "recovery-point")


def test_topic_ids_are_known(stores: Stores) -> None:
    store = stores.open()
    fill(store)
    assert store.topic_id(partition(0)) == ID
    assert store.topic_id(partition(9)) is None


def test_a_deleted_partition_is_not_found_and_its_files_go_after_the_delay(
    stores: Stores,
) -> None:
    stores.topics = {"file_delete_delay_ms": 1000}
    store = stores.open("d1")
    fill(store)
    store.delete(partition(0))
    with pytest.raises(NotFound):
        store.get(partition(0))
    store.run_once(stores.clock.now_ms() + 999)
    assert any(name.endswith("-delete") for name in stores.fs.names("d1"))
    store.run_once(stores.clock.now_ms() + 1000)
    assert not any(name.endswith("-delete") for name in stores.fs.names("d1"))


def test_deleting_an_unknown_partition_is_refused(stores: Stores) -> None:
    with pytest.raises(NotFound):
        stores.open().delete(partition(0))


# Maintenance


def test_checkpoints_are_written_when_they_are_due(stores: Stores) -> None:
    store = stores.open(
        "d1",
        log_flush_offset_checkpoint_interval_ms=3000,
        log_flush_start_offset_checkpoint_interval_ms=2000,
        replica_high_watermark_checkpoint_interval_ms=1000,
    )
    fill(store).flush()
    start = stores.clock.now_ms()
    names = ("recovery-point", "log-start", "replication")

    def there() -> list[str]:
        return [name for name in names if stores.fs.exists(f"d1/{name}-offset-checkpoint")]

    for after, expected in (
        (999, []),
        (1000, ["replication"]),
        (2000, ["log-start", "replication"]),
    ):
        store.run_once(start + after)
        assert there() == expected
    store.run_once(start + 3000)
    assert stores.offsets("d1", "recovery-point") == {partition(0): 2}


def test_producers_expire_when_it_is_time_to_look(stores: Stores) -> None:
    store = stores.open(
        "d1", producer_id_expiration_ms=1000, producer_id_expiration_check_interval_ms=5000
    )
    log = store.create(partition(0), ID)
    log.append(make_batch(producer_id=1, producer_epoch=0, base_sequence=0))
    start = stores.clock.now_ms()
    store.run_once(start + 4999)
    assert log.producers.entries
    store.run_once(start + 5000)
    assert not log.producers.entries


def test_flush_ms_is_kept_by_maintenance(stores: Stores) -> None:
    stores.topics = {"flush_ms": 500}
    store = stores.open("d1")
    log = fill(store)
    store.run_once(stores.clock.now_ms() + 500)
    assert log.recovery_point == 2


def test_a_failing_checkpoint_takes_its_directory_offline(stores: Stores) -> None:
    store = stores.open("d1")
    fill(store)
    stores.fs.fail_from(stores.fs.steps + 1, BROKEN)
    store.run_once(stores.clock.now_ms() + 10**6)
    with pytest.raises(DirectoryOffline):
        store.get(partition(0))


def test_closing_tries_every_directory_and_tells_the_first_error(stores: Stores) -> None:
    store = stores.open()
    for number in range(2):
        fill(store, number)
    stores.fs.fail_under("d1", BROKEN)
    with pytest.raises(StoreError):
        store.close()
    assert stores.fs.exists("d2/.kafka_cleanshutdown")
    stores.fs.mend()
    assert not stores.fs.exists("d1/.kafka_cleanshutdown")
    store = stores.open()
    assert [read_all(store.get(partition(n))) for n in range(2)] == [[0, 1], [0, 1]]


def test_a_full_disk_is_no_reason_to_go_offline(stores: Stores) -> None:
    store = stores.open("d1", "d2")
    log = fill(store)
    stores.fs.fail_at(stores.fs.steps + 1, NO_ROOM)
    store.run_once(stores.clock.now_ms() + 10**6)
    assert [directory.failure for directory in store.directories] == [None, None]
    log.append(make_batch())


def test_a_full_directory_is_passed_over_and_keeps_no_half_made_partition(stores: Stores) -> None:
    store = stores.open("d1", "d2")
    for step in range(1, 9):
        stores.fs.fail_at(stores.fs.steps + step, NO_ROOM)
        store.create(partition(step), ID)
        stores.fs.mend()
        fill(store, step)
    assert [directory.failure for directory in store.directories] == [None, None]
    store.close()
    assert len(stores.open("d1", "d2").partitions) == 8


def test_a_failed_deletion_is_told_as_ours(stores: Stores) -> None:
    store = stores.open("d1")
    fill(store)
    stores.fs.fail_from(stores.fs.steps + 1, BROKEN)
    with pytest.raises(DirectoryOffline, match="deletion of t-0"):
        store.delete(partition(0))


def test_the_logs_of_every_directory_that_is_online_are_walked(stores: Stores) -> None:
    store = stores.open("d1", "d2")
    for number in range(4):
        fill(store, number)
    walked = list(store.logs())
    assert sorted(one for one, _, _ in walked) == [partition(n) for n in range(4)]
    assert all(log is store.get(one) for one, log, _ in walked)
    assert all(store.directory_of(one) is directory for one, _, directory in walked)
    store.directories[0].health.fail(DirectoryOffline("broken"))
    assert {directory.path for _, _, directory in store.logs()} == {"d2"}


def test_a_full_disk_keeps_no_other_log_from_its_maintenance(stores: Stores) -> None:
    stores.topics = {"segment_ms": 10, "file_delete_delay_ms": 0}
    store = stores.open("d1")
    first, second = (fill(store, number) for number in range(2))
    second.roll()
    second.append(make_batch())
    second.drop_segments_before(2, now_ms=stores.clock.now_ms())
    store.run_once(stores.clock.now_ms())
    stores.clock.advance(1000)
    stores.fs.fail_at(stores.fs.steps + 1, NO_ROOM)
    store.run_once(stores.clock.now_ms())
    assert [len(log.view) for log in (first, second)] == [1, 2]
    store.run_once(stores.clock.now_ms())
    assert [len(log.view) for log in (first, second)] == [2, 2]
