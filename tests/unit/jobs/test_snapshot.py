"""A snapshot is the state at an offset, with where to read on; the next goes on from it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types
import pytest

from tests.support.snapshot_topic import SMALL, SnapshotTopic, rows_of
from tests.support.source_topic import SourceTopic
from varve.commit_log import LogSettings
from varve.foundation.errors import (
    Corrupt,
    InconsistentTopicId,
    InvalidRequest,
    NotFound,
    OffsetOutOfRange,
    UnsupportedFormat,
)
from varve.jobs.compact.job import compact
from varve.jobs.compact.settings import CompactSettings
from varve.jobs.derived_outputs import ErasedRows
from varve.jobs.snapshot.document import SnapshotDocument, find_snapshot
from varve.jobs.snapshot.erase import count_in_snapshot, erase_from_snapshot
from varve.jobs.snapshot.snapshot import take_snapshot
from varve.jobs.snapshot.store import check_apart, open_snapshot
from varve.jobs.snapshot.tasks import StagedBuckets
from varve.jobs.tasks import LocalRunner, Task
from varve.jobs.tier.bucket import find_cluster
from varve.records import Record
from varve.topics.outputs import DerivedOutput, OutputKind, RemoteOutputRegistry

T = TypeVar("T")


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[SnapshotTopic]:
    topic = SourceTopic(
        tmp_path, partitions=2, cleanup_policy="compact,delete", index_interval_bytes=64
    )
    yield SnapshotTopic(topic)
    topic.close()


def fill(kit: SnapshotTopic, *, first: int = 0, count: int = 40, keys: int = 12) -> None:
    """Keys over and over in both partitions, every seventh record a tombstone."""
    for partition in (0, 1):
        kit.topic.append(
            [
                Record(
                    f"k{number % keys}".encode(),
                    None if number % 7 == 3 else f"value {number}".encode(),
                    timestamp=1_000 + number,
                    headers=(("number", str(number).encode()),),
                )
                for number in range(first, first + count)
                if number % 2 == partition
            ],
            partition=partition,
        )


def copy(kit: SnapshotTopic) -> None:
    for partition in (0, 1):
        kit.topic.roll(partition)
    kit.topic.kit.clean_now(roll=False)
    for partition in (0, 1):
        kit.topic.copy(partition)


def test_a_snapshot_of_both_tiers_is_what_a_dict_holds(kit: SnapshotTopic) -> None:
    for number in range(3):
        fill(kit, first=number * 40)
        copy(kit)
    fill(kit, first=120, count=9)
    result = kit.take()
    assert kit.rows() == kit.model()
    assert result.is_new
    assert result.resume_offsets == {0: 65, 1: 64}
    assert result.rows == len(kit.model())
    found = kit.open().read(columns=["partition", "timestampType", "headers"]).to_pylist()[0]
    assert (found["partition"], found["timestampType"]) == (0, 0)
    assert found["headers"][0]["key"] == "number"


def test_the_next_snapshot_reads_what_is_new_and_rewrites_what_changed(kit: SnapshotTopic) -> None:
    fill(kit)
    copy(kit)
    first = kit.take()
    kit.topic.put(("k1", "new"), ("k5", None), partition=1)
    second = kit.take()
    assert kit.rows() == kit.model()
    assert second.document.previous == first.snapshot
    assert second.rows_read == 2
    assert 1 <= second.files_written <= 2
    before = {file.path for file in first.document.files}
    assert len(before & {file.path for file in second.document.files}) >= len(before) - 2
    assert kit.rows(first.snapshot) != kit.rows(second.snapshot)
    third = kit.take()
    assert (third.is_new, third.snapshot) == (False, second.snapshot)


def test_an_earlier_offset_or_time_is_another_snapshot(kit: SnapshotTopic) -> None:
    fill(kit)
    kit.take()
    at = kit.take(at={0: 5, 1: 6})
    assert at.document.previous is None
    assert kit.rows() == kit.model(at=lambda partition: 5 + partition)
    by_time = kit.take(at_ms=1_010)
    assert by_time.resume_offsets == {0: 5, 1: 5}
    behind = kit.take(at={0: 99, 1: 20})
    assert "not at 99" in behind.partitions[0].note


def test_rows_below_the_start_of_the_log_go(kit: SnapshotTopic) -> None:
    fill(kit, keys=40)
    kit.take()
    kit.topic.topic.partition(0).delete_records(10)
    kit.topic.kit.run_background()
    result = kit.take()
    assert kit.rows() == kit.model()
    assert result.rows_read == 0
    assert result.partitions[0].start_offset == 10
    with pytest.raises(OffsetOutOfRange, match="begins at offset 10"):
        kit.take(at=4)
    with pytest.raises(OffsetOutOfRange, match="no longer known"):
        kit.take(at_ms=1_001)
    assert not kit.take(at_ms=1 << 50).is_new


def test_a_deleted_key_stays_deleted_whatever_compactions_were_told(kit: SnapshotTopic) -> None:
    fill(kit, keys=40)
    copy(kit)
    kit.take()
    assert (0, b"k2") in kit.rows()
    kit.topic.put(("k2", None), ("k4", "new"))
    copy(kit)
    address = kit.topic.options().address
    assert address is not None
    log = LogSettings(cleanup_policy=("compact",), delete_retention_ms=0)
    for _ in range(2):
        compact(
            address,
            ["orders"],
            settings=CompactSettings(log=log, is_forced=True),
            runner=LocalRunner(),
        )
    kit.topic.put(("k6", "newer"))
    result = kit.take()
    assert (0, b"k2") not in kit.rows()
    assert "read in full" in result.partitions[0].note
    assert kit.take(settings=replace(SMALL, is_full=True)).document.files == result.document.files


def test_old_snapshots_go_and_shared_files_stay(kit: SnapshotTopic) -> None:
    fill(kit)
    first = kit.take()
    kit.topic.put(("k1", "new"), partition=1)
    second = kit.take(settings=replace(SMALL, keep=1))
    assert "snapshot/00000000000000000001.json" in second.removed
    lost = {file.path for file in first.document.files} - {
        file.path for file in second.document.files
    }
    assert lost
    assert lost <= set(second.removed)
    assert kit.rows() == kit.model()
    with pytest.raises(NotFound, match="snapshots: 2"):
        kit.open(1)


def test_leftovers_go_and_files_of_others_stay(kit: SnapshotTopic) -> None:
    fill(kit)
    kit.store.put("data/00000-00001-" + "0" * 32 + ".parquet", b"left")
    kit.store.put("data/somebody.parquet", b"kept")
    assert not kit.take(settings=replace(SMALL, grace_ms=60_000)).swept, "it may be of a run"
    later = replace(SMALL, grace_ms=-60_000)
    assert kit.take(settings=later).swept == ("data/00000-00001-" + "0" * 32 + ".parquet",)
    assert kit.store.get("data/somebody.parquet") == b"kept"


def test_damage_is_told(kit: SnapshotTopic) -> None:
    fill(kit)
    file = kit.take().document.files[0]
    assert kit.place.find_fault(file) is None
    kit.store.put(file.path, kit.store.get(file.path)[:-1] + b"?")
    assert "SHA-256" in (kit.place.find_fault(file) or "")
    with pytest.raises(Corrupt, match="restore it from a copy"):
        kit.rows()
    kit.store.delete([file.path])
    assert "missing" in (kit.place.find_fault(file) or "")


def test_a_batch_of_the_tier_at_a_wrong_offset_is_damage(kit: SnapshotTopic) -> None:
    for number in range(4):
        kit.topic.put(("k", f"value {number}"))
    copy(kit)
    address = kit.topic.options().address
    assert address is not None
    (key,) = (one.key for one in address.objects().list("") if one.key.endswith("/log"))
    data = bytearray(address.objects().get(key))
    last = len(data) * 3 // 4
    data[last : last + 8] = (3 ^ 1 << 20).to_bytes(8, "big")
    address.objects().put(key, bytes(data))
    for split_bytes in (1, 1 << 20):
        with pytest.raises(Corrupt, match="offset"):
            kit.take(settings=replace(SMALL, split_bytes=split_bytes))
    assert not kit.place.documents()


def test_a_lost_file_is_told_with_the_way_out(kit: SnapshotTopic) -> None:
    fill(kit)
    file = kit.take().document.files[0]
    kit.store.delete([file.path])
    for _ in range(2):
        with pytest.raises(Corrupt, match="--full"):
            kit.take()
        kit.topic.put(("more", "x"))
    full = kit.take(settings=replace(SMALL, is_full=True))
    kit.topic.put(("more", "y"))
    assert kit.take().document.previous == full.snapshot
    assert kit.rows() == kit.model()


def test_a_document_may_be_written_anew_with_the_same_content(kit: SnapshotTopic) -> None:
    fill(kit)
    document = kit.take().document
    kit.store.put(document.key, json.dumps(json.loads(document.encode())).encode())
    kit.topic.put(("more", "x"))
    assert kit.take().document.previous == document.snapshot
    kit.store.put("snapshot/00000000000000000007.json", document.encode())
    with pytest.raises(Corrupt, match="is snapshot 1"):
        kit.take()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("files", 0, "bucket"), "x"),
        (("files", 0, "bucket"), 4),
        (("files", 0, "partition"), 9),
        (("files", 0, "size"), 1.5),
        (("files", 0, "path"), 7),
        (("partitions", 0, "resume_offset"), None),
        (("partitions", 0, "resume_offset"), -1),
        (("partitions", 0, "resume_offset"), True),
        (("partitions",), []),
        (("buckets",), 0),
        (("buckets",), 1 << 70),
        (("topic",), ["orders"]),
    ],
)
def test_a_damaged_document_is_corrupt(
    kit: SnapshotTopic, place: tuple[str | int, ...], value: object
) -> None:
    fill(kit)
    document = json.loads(kit.take().document.encode())
    *path, last = place
    entry = document
    for step in path:
        entry = entry[step]
    entry[last] = value
    with pytest.raises(Corrupt, match="here: cannot be read as a snapshot"):
        SnapshotDocument.decode(json.dumps(document).encode(), "here")


def test_some_snapshots_are_kept(kit: SnapshotTopic, tmp_path: Path) -> None:
    fill(kit)
    kit.take()
    for count in (0, -1):
        with pytest.raises(InvalidRequest, match="the minimum is 1"):
            kit.place.keep(count)
        with pytest.raises(InvalidRequest, match="the minimum is 1"):
            take_snapshot(
                "orders",
                str(tmp_path / "place"),
                directories=[kit.topic.kit.path],
                settings=replace(SMALL, keep=count),
                runner=LocalRunner(),
            )
    assert len(kit.place.documents()) == 1


def test_an_offset_of_a_partition_that_is_not_there_is_refused(kit: SnapshotTopic) -> None:
    fill(kit)
    with pytest.raises(InvalidRequest, match=r"partition 9.*partitions: 0, 1"):
        kit.take(at={0: 5, 9: 5})


def test_a_snapshot_of_the_same_offsets_is_found_behind_others(kit: SnapshotTopic) -> None:
    fill(kit)
    first = kit.take()
    kit.take(at=3)
    again = kit.take()
    assert (again.is_new, again.snapshot) == (False, first.snapshot)


def test_a_topic_that_is_not_there_leaves_no_place(kit: SnapshotTopic, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no topic 'nope'"):
        take_snapshot(
            "nope",
            str(tmp_path / "place"),
            directories=[kit.topic.kit.path],
            runner=LocalRunner(),
        )
    assert not (tmp_path / "place").exists()


def test_a_place_is_of_one_topic_and_one_number_of_buckets(kit: SnapshotTopic) -> None:
    fill(kit)
    document = kit.take().document
    with pytest.raises(InvalidRequest, match="has 4 buckets"):
        kit.take(settings=replace(SMALL, buckets=8))
    kit.topic.put(("more", "x"))
    with pytest.raises(InvalidRequest, match="has 4 buckets"):
        kit.take(settings=replace(SMALL, buckets=8))
    kit.store.put(document.key, replace(document, topic_id="A" * 22).encode())
    with pytest.raises(InconsistentTopicId, match="choose another place"):
        kit.take()


def test_a_place_lies_apart_from_the_log(tmp_path: Path) -> None:
    for place in (f"{tmp_path}/data", f"{tmp_path}/data/in", f"{tmp_path}", f"file:{tmp_path}"):
        with pytest.raises(InvalidRequest, match="overlap: choose a place"):
            check_apart(place, [f"{tmp_path}/data", "s3://bucket/tier"])
    with pytest.raises(InvalidRequest, match="overlap: choose a place"):
        check_apart("s3://bucket/tier/state", ["s3://bucket/tier"])
    check_apart(f"{tmp_path}/data-2", [f"{tmp_path}/data", "s3://bucket/tier"])
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with pytest.raises(InvalidRequest, match="overlap: choose a place"):
        check_apart(f"{tmp_path}/link/in", [f"{tmp_path}/data"])


def test_a_document_is_read_as_it_was_written(kit: SnapshotTopic) -> None:
    fill(kit)
    document = kit.take().document
    assert SnapshotDocument.decode(document.encode(), "here") == document
    assert find_snapshot(document.key) == 1
    assert find_snapshot("snapshot/1.json") is None
    for data in (b"{}", b"[", document.encode().replace(b'"buckets"', b'"other"')):
        with pytest.raises(Corrupt, match="here"):
            SnapshotDocument.decode(data, "here")
    with pytest.raises(UnsupportedFormat, match="newer varve"):
        SnapshotDocument.decode(document.encode().replace(b'"format": 1', b'"format": 9'), "here")


def test_rows_are_erased_from_all_snapshots_of_a_directory(
    kit: SnapshotTopic, tmp_path: Path
) -> None:
    fill(kit)
    copy(kit)
    place, address = str(tmp_path / "place"), kit.topic.options().address
    assert address is not None
    for at in (12, None):
        kit.topic.flush()
        take_snapshot(
            "orders",
            place,
            address=address,
            directories=[kit.topic.kit.path],
            at_offset=at,
            settings=replace(SMALL, buckets=1),
            runner=LocalRunner(),
        )
    kept = rows_of(open_snapshot(place, 1))
    orphan = open_snapshot(place).paths[0]
    (tmp_path / "place/data" / ("00000-00000-" + "0" * 32 + ".parquet")).write_bytes(
        Path(orphan).read_bytes()
    )
    topic_id = open_snapshot(place).document.topic_id
    (output,) = RemoteOutputRegistry(address.objects(), find_cluster(address)).find(
        "orders", topic_id
    )
    assert output == DerivedOutput(
        kind=OutputKind.SNAPSHOT,
        topic="orders",
        topic_id=topic_id,
        place=f"file:{place}",
        name="orders",
        noted_ms=output.noted_ms,
    )
    wanted = ErasedRows(frozenset({b"k2", b"k4"}), {1: np.array([10], np.int64)})
    before = count_in_snapshot(output, {}, wanted)
    assert before > 2
    erased = erase_from_snapshot(output, {}, wanted)
    assert count_in_snapshot(output, {}, wanted) == 0
    assert erased.rows == before
    assert {file.path for file in erased.files_before} <= set(erased.removed)
    assert not any((tmp_path / "place" / path).exists() for path in erased.removed)
    assert erased.files_after
    (told,) = erased.out_of_reach
    assert "snapshots 1 lack keys" in told
    assert [one.is_thinned for one in open_snapshot(place, 1).document.partitions] == [False, True]
    assert rows_of(open_snapshot(place, 1)) == {
        at: row
        for at, row in kept.items()
        if at[1] not in wanted.keys and (at[0], row[0]) != (1, 10)
    }
    again = erase_from_snapshot(output, {}, wanted)
    assert (again.rows, again.removed) == (0, ())
    assert sum(pq.read_metadata(path).num_rows for path in open_snapshot(place).paths) == (
        open_snapshot(place).document.rows
    )


def test_what_is_not_there_is_told(kit: SnapshotTopic, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="does not hold a snapshot"):
        kit.open()
    with pytest.raises(InvalidRequest, match="give the object store"):
        take_snapshot("orders", str(tmp_path / "place"), runner=LocalRunner())


def test_a_reading_task_gives_the_driver_one_object_however_many_buckets(
    kit: SnapshotTopic,
) -> None:
    class Recording(LocalRunner):
        def run(self, stage: str, tasks: Sequence[Task[T]], shared: object = None) -> list[T]:
            results = super().run(stage, tasks, shared)
            if stage == "read":
                given.append((len(tasks), [type(result) for result in results]))
            return results

    given: list[tuple[int, list[type]]] = []
    fill(kit)
    kit.take(runner=Recording(), settings=replace(SMALL, buckets=4))
    ((count, kinds),) = given
    assert kinds == [StagedBuckets] * count
