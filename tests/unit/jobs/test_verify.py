"""Damage of every kind in a bucket is found and named, and nothing else is: G6."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.cleaning_bench import PARTITION, TOPIC_ID
from tests.support.remote_compaction import RemoteCompaction
from tests.support.store_access import StoreAccess
from tests.support.task_runners import InterferingRunner, TravellingRunner
from tests.support.tier_bench import TierBench, tiered
from tests.support.verification import verify_bench
from varve.cleaning.key_index.builder import build_key_index
from varve.cleaning.key_index.key_index import ENTRY, HEADER_BYTES
from varve.commit_log.check.findings import Severity
from varve.disk import RealFileSystem
from varve.jobs.tier.remote_files import RemoteInput, checksum, open_files, scratch
from varve.jobs.verify import manifests
from varve.jobs.verify.result import VerifyFinding
from varve.jobs.verify.verification import verify_documents
from varve.tiering.manifest.segment import (
    ANNOUNCEMENT_TIMEOUT_MS,
    ObjectPart,
    RemoteSegment,
    SegmentState,
)
from varve.topics.outputs import DerivedOutput, OutputKind, RemoteOutputRegistry


def make(*segments: int, is_compacted: bool = True, **settings: Any) -> RemoteCompaction:
    """A bucket of several segments, with an aborted transaction; the oldest are compacted."""
    remote = RemoteCompaction(TierBench(tiered(segment_bytes=600, **settings)))
    remote.bench.fill(*(segments or (6, 6, 6)))
    remote.copy()
    if is_compacted:
        remote.compact()
    remote.hot.put("key-2", "void", producer_id=7, transactional=True)
    remote.hot.end_transaction(7, committed=False)
    remote.hot.roll()
    remote.bench.fill(4)
    remote.copy()
    return remote


def key_of(remote: RemoteCompaction, number: int, part: str) -> str:
    return remote.bench.home.part_key(remote.bench.readable()[number], part)


def only(remote: RemoteCompaction) -> VerifyFinding:
    found = verify_bench(remote.bench).findings
    assert len(found) == 1, [(one.rule, one.where, one.message) for one in found]
    (one,) = found
    assert (one.topic, one.partition) == (PARTITION.topic, PARTITION.partition)
    assert one.remedy
    return one


def change_segment(
    remote: RemoteCompaction, change: Callable[[RemoteSegment], RemoteSegment], number: int = 0
) -> None:
    """A manifest that says something else of a segment."""
    segment = remote.bench.readable()[number]
    remote.change_manifest(
        lambda manifest: manifest.update(change(manifest.get_segment(segment.id)))
    )


def put_part(remote: RemoteCompaction, number: int, name: str, data: bytes) -> None:
    """An object, with a manifest that agrees to it."""
    segment = remote.bench.readable()[number]
    remote.bench.bucket.put(remote.bench.home.part_key(segment, name), data)
    part = ObjectPart(name, len(data), checksum(data))
    parts = tuple(part if one.name == name else one for one in segment.parts)
    change_segment(remote, lambda one: replace(one, parts=parts), number)


def test_a_flipped_byte_of_the_data_is_named_with_its_batch() -> None:
    remote = make()
    key = remote.flip(1, "log")
    one = only(remote)
    assert (one.rule, one.where, one.severity) == ("object-checksum", key, Severity.ERROR)
    assert "CRC" in one.message
    assert one.position is not None
    assert one.position > 0
    assert one.expected != one.found


@pytest.mark.parametrize("part", ["index", "timeindex", "txnindex", "snapshot", "epochs", "keys"])
def test_a_flipped_byte_of_any_other_part_is_named_alone(part: str) -> None:
    remote = make()
    numbers = range(len(remote.bench.readable()))
    number = next(n for n in numbers if remote.bench.readable()[n].find_part(part) and n > 0)
    size = len(remote.bench.bucket.get(key_of(remote, number, part)))
    key = remote.flip(number, part, size // 2)
    one = only(remote)
    assert (one.rule, one.where) == ("object-checksum", key)


def test_a_missing_object_and_a_short_one_are_told_apart() -> None:
    remote = make()
    remote.bench.bucket.delete([key_of(remote, 0, "log")])
    one = only(remote)
    assert (one.rule, one.found) == ("object-missing", "nothing")
    remote = make()
    key = key_of(remote, 0, "index")
    remote.bench.bucket.put(key, remote.bench.bucket.get(key) + b"12345678")
    one = only(remote)
    assert (one.rule, one.where) == ("object-size", key)


def test_parts_that_were_swapped_between_segments_are_both_named() -> None:
    remote = make(6, 6, 6, is_compacted=False)
    keys = [key_of(remote, number, "keys") for number in (0, 1)]
    contents = [remote.bench.bucket.get(key) for key in keys]
    for key, data in zip(keys, reversed(contents), strict=True):
        remote.bench.bucket.put(key, data)
    found = verify_bench(remote.bench).findings
    assert {(one.rule, one.where) for one in found} == {("object-checksum", key) for key in keys}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("record count", lambda one: replace(one, record_count=one.record_count + 1)),
        ("largest timestamp", lambda one: replace(one, max_timestamp=one.max_timestamp + 1)),
        ("key count", lambda one: replace(one, key_count=99)),
        ("mark of aborted transactions", lambda one: replace(one, has_aborted=True)),
        ("first undecided offset", lambda one: replace(one, undecided_from=1)),
    ],
)
def test_a_manifest_that_says_what_is_not_so_is_found(
    name: str, change: Callable[[RemoteSegment], RemoteSegment]
) -> None:
    remote = make()
    change_segment(remote, change)
    one = only(remote)
    assert one.rule == "segment-figures"
    assert name in one.message
    assert one.expected != one.found


def flip_key_entry(remote: RemoteCompaction, field: str) -> None:
    """Another first entry of a key index whose checksums are all right."""
    number = next(n for n, one in enumerate(remote.bench.readable()) if one.key_count)
    segment = remote.bench.readable()[number]
    reach = StoreAccess(remote.bench.bucket, random.Random(1))
    data = bytearray(remote.bench.bucket.get(remote.bench.home.part_key(segment, "keys")))
    with open_files(reach.objects, remote.bench.home, [segment]) as files, scratch() as directory:
        source = RemoteInput(remote.bench.home, segment, files)
        header = build_key_index(
            RealFileSystem(), source, topic_id=TOPIC_ID.bytes, aborted=(), path=f"{directory}/k"
        )
    entries = np.frombuffer(data, ENTRY, header.entry_count, HEADER_BYTES)
    if field == "hash_high":
        entries[field][0] -= 1  # which leaves the entries in order
    else:
        entries[field][0] ^= 1
    crc = checksum(bytes(data[HEADER_BYTES:]))
    data[:HEADER_BYTES] = replace(header, sections_crc=crc).encode()
    put_part(remote, number, "keys", bytes(data))


@pytest.mark.parametrize("field", ["offset", "record", "size", "flags", "hash_high"])
def test_an_entry_of_a_key_index_that_is_not_true_is_found(field: str) -> None:
    remote = make()
    flip_key_entry(remote, field)
    one = only(remote)
    if field == "hash_high":
        assert "lists a key that no committed record" in one.message
    else:
        assert (one.rule, one.position) == ("keys-untrue", HEADER_BYTES)
        assert "another record" in one.message
        assert field in one.expected


def test_an_index_that_points_into_a_batch_is_found() -> None:
    remote = make(6, 6, 6, index_interval_bytes=0)
    count = len(remote.bench.readable())
    number = next(n for n in range(count) if remote.bench.bucket.get(key_of(remote, n, "index")))
    data = bytearray(remote.bench.bucket.get(key_of(remote, number, "index")))
    data[-1] ^= 1
    put_part(remote, number, "index", bytes(data))
    one = only(remote)
    assert (one.rule, one.where) == ("index-position", key_of(remote, number, "index"))


def test_producers_and_epochs_are_held_against_the_data() -> None:
    remote = make()
    put_part(remote, 1, "epochs", b"0\n1\n5 0\n")
    found = verify_bench(remote.bench).findings
    assert {one.rule for one in found} == {"segment-epochs", "epochs-untrue"}
    remote = make()
    empty = remote.bench.bucket.get(key_of(remote, 0, "snapshot"))
    last = next(
        n
        for n in range(len(remote.bench.readable()))
        if remote.bench.bucket.get(key_of(remote, n, "snapshot")) != empty
    )
    put_part(remote, last, "snapshot", empty)
    found = verify_bench(remote.bench).findings
    key = key_of(remote, last, "snapshot")
    assert ("snapshot-incomplete", key) in [(one.rule, one.where) for one in found]


def test_a_key_that_occurs_twice_below_the_clean_bound_is_found() -> None:
    remote = make(6, 6, 6, is_compacted=False)
    end = remote.bench.manifests().load().highest_offset + 1
    remote.change_manifest(
        lambda manifest: replace(
            manifest.raise_cleaned_up_to(end),
            segments=tuple(replace(one, stale_bytes=0) for one in manifest.segments),
        ),
    )
    found = verify_bench(remote.bench, range_bytes=64).findings
    assert {one.rule for one in found} == {"keys-twice"}
    assert [one.base_offset for one in found] == [0, 6, 12]
    assert found[0].offset in range(6)
    assert "6 records" in found[0].message


def test_what_the_manifest_calls_stale_may_occur_twice() -> None:
    remote = RemoteCompaction(
        TierBench(tiered(segment_bytes=600, min_stale_ratio=0.9, min_cleanable_dirty_ratio=0))
    )
    remote.bench.fill(9, 9)
    remote.copy()
    remote.compact(settings=replace(remote.settings(), is_forced=False))
    for number in range(3):
        remote.hot.put(f"key-{number}", "again")
    remote.hot.roll()
    remote.copy()
    remote.compact(settings=replace(remote.settings(), is_forced=False))
    stale = [n for n, one in enumerate(remote.bench.readable()) if one.stale_bytes]
    assert stale, "a segment was not worth rewriting"
    assert verify_bench(remote.bench).findings == ()
    change_segment(remote, lambda one: replace(one, stale_bytes=2), stale[0])
    one = only(remote)
    assert (one.rule, one.severity) == ("keys-undercounted", Severity.WARNING)


def test_a_hole_in_the_chain_is_found() -> None:
    remote = make()
    second = remote.bench.readable()[1]
    remote.change_manifest(lambda manifest: manifest.start_delete([second.id], at_ms=1))
    one = only(remote)
    assert (one.rule, one.offset) == ("chain-hole", second.base_offset)


def test_a_manifest_that_is_lost_or_damaged_is_told() -> None:
    remote = make()
    home, version = remote.bench.home, remote.bench.manifests().load().version
    data = bytearray(remote.bench.bucket.get(home.manifest_key(version)))
    data[40] ^= 1
    remote.bench.bucket.put(home.manifest_key(version), bytes(data))
    assert only(remote).rule == "manifest-unreadable"
    remote = make()
    for number in range(version + 1):
        remote.bench.bucket.delete([home.manifest_key(number)])
    assert only(remote).rule == "manifest-unreadable"


def test_orphans_foreign_objects_and_what_is_retained_are_told_apart() -> None:
    remote = make()
    prefix = remote.bench.home.prefix
    bucket = remote.bench.bucket
    bucket.put(f"{prefix}segment/{7:020}-nobody/log", b"x")
    bucket.put(f"{prefix}notes.txt", b"x")
    gone = next(one for one in remote.bench.segments() if one.state is SegmentState.DELETE_STARTED)
    bucket.delete([remote.bench.home.part_key(gone, "log")])
    found = verify_bench(remote.bench).findings
    assert {one.rule: one.severity for one in found} == {
        "orphan": Severity.WARNING,
        "retained-missing": Severity.WARNING,
        "foreign": Severity.NOTE,
    }
    assert len(found) == 3


def test_many_unnamed_objects_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "UNNAMED_MAX", 3)
    remote = make()
    for number in range(10):
        remote.bench.bucket.put(f"{remote.bench.home.prefix}notes-{number}.txt", b"x")
    found = verify_bench(remote.bench).findings
    assert [one.rule for one in found] == ["foreign"] * 4
    assert [one.message for one in found if one.where == remote.bench.home.prefix] == [
        "7 more such objects: `varve tier fsck` lists all"
    ]


@pytest.mark.parametrize("part", [None, "log", "index", "keys"])
def test_what_tasks_return_does_not_grow_with_records(part: str | None) -> None:
    """Neither for a segment without damage nor for one of which much is wrong."""
    largest = []
    for count in (100, 3000):
        remote = RemoteCompaction(TierBench(tiered(segment_bytes=1 << 20, index_interval_bytes=1)))
        remote.bench.fill(count, count)
        remote.copy()
        remote.compact()
        if part is not None:
            key = key_of(remote, -1, part)
            data = bytes(remote.bench.bucket.get(key))
            remote.bench.bucket.put(key, data[: len(data) // 2].ljust(len(data), b"\x01"))
        runner = TravellingRunner()
        found = verify_bench(remote.bench, runner=runner).findings
        assert bool(found) == (part is not None)
        largest.append(runner.outcome_bytes)
    assert largest[1] < largest[0] + 2000


def test_an_announced_copy_that_nobody_finishes_is_worth_a_note() -> None:
    remote = make()
    left = replace(remote.bench.readable()[-1], id="left", state=SegmentState.COPY_STARTED)
    remote.change_manifest(lambda manifest: manifest.announce(left))
    assert verify_bench(remote.bench).findings == ()
    remote.hot.advance(ANNOUNCEMENT_TIMEOUT_MS + 1)
    assert only(remote).rule == "abandoned"


def test_evidence_that_does_not_add_up_is_found() -> None:
    remote = make()
    (entry,) = remote.bench.bucket.list(f"{remote.bench.home.prefix}evidence/")
    data = remote.bench.bucket.get(entry.key)
    remote.bench.bucket.put(entry.key, data.replace(b'"superseded":12', b'"superseded":11'))
    one = only(remote)
    assert (one.rule, one.where) == ("evidence-corrupt", entry.key)


def test_notes_of_outputs_and_receipts_are_read() -> None:
    remote = make()
    home, bucket = remote.bench.home, remote.bench.bucket
    topic = (home.cluster, home.topic, home.topic_id)
    output = DerivedOutput(
        kind=OutputKind.FILES, topic=home.topic, topic_id=home.topic_id, place="p", name="n"
    )
    RemoteOutputRegistry(bucket, home.cluster).note(output)
    folder = f"{home.cluster}/{home.topic}.{home.topic_id}"
    bucket.put(f"{folder}/receipt/one.json", b"{}")
    assert list(verify_documents(bucket, *topic)) == []
    bucket.put(f"{folder}/receipt/two.json", b"{")
    bucket.put(f"{folder}/output/{output.id}.json", b"[]")
    found = list(verify_documents(bucket, *topic))
    assert [one.rule for one in found] == ["note-corrupt"] * 2


def test_what_expires_meanwhile_is_not_damage() -> None:
    remote = make()

    def expire() -> None:
        first = remote.expire_first()
        keys = [remote.bench.home.part_key(first, part.name) for part in first.parts]
        remote.bench.bucket.delete(keys)

    meanwhile = InterferingRunner(expire, stage="segments", is_before=True)
    assert verify_bench(remote.bench, runner=meanwhile).findings == ()
