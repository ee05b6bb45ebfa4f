"""Records are erased from all tiers, nothing else goes, and a receipt says so."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

import varve
from tests.support.erasure_bench import ErasureBench
from tests.support.task_runners import InterferingRunner, TravellingRunner
from tests.support.tiered_topic import TieredTopic
from varve.cleaning.removals.removal_log import RemovalLog
from varve.commit_log.directory_files import encode_topic_id
from varve.commit_log.names import REMOTE_INDEX_CACHE_DIRECTORY
from varve.foundation.errors import Corrupt, InvalidRequest, NotFound, PowerLoss, Unavailable
from varve.jobs.derived_outputs import ErasedOutput, ErasedRows
from varve.jobs.erase.erasure import erase, new_erasure_id
from varve.jobs.erase.request import ErasureRequest, FieldMatch, RescanMode, ValueFormat
from varve.jobs.erase.targets import OutputErasure, find_topic_outputs, forget_output, list_outputs
from varve.jobs.erase.tasks import NotErased
from varve.jobs.tasks import LocalRunner
from varve.object_store import MemoryObjectStore, MirroredObjectStore, ObjectInfo
from varve.records import Codec
from varve.tiering.manifest.segment import ObjectPart, SegmentState
from varve.tiering.read.index_cache import index_name
from varve.topics.outputs import (
    DerivedOutput,
    LocalOutputRegistry,
    OutputKind,
    RemoteOutputRegistry,
)

BY_EMAIL = FieldMatch.of("email", ["ann@x"], ValueFormat.JSON)


def compacted() -> ErasureBench:
    """A topic whose segments have key indexes."""
    return ErasureBench(TieredTopic(topic_settings={"cleanup.policy": "compact"}))


@pytest.fixture
def bench() -> ErasureBench:
    """Three copied segments and one that is being written; `ann` is in all but the second."""
    made = compacted()
    made.put("ann", "bob")
    made.put("ann", value="again")
    made.roll()
    made.put("bob", "cy", codec=Codec.ZSTD)
    made.roll()
    made.put("dan", "ann", "dan", codec=Codec.GZIP)
    made.put("ann", value=None)
    made.roll()
    made.copy()
    made.put("ann", "eve")
    return made


ANN = {0, 2, 6, 8, 9}
"""Her offsets."""


def test_a_key_leaves_every_tier_and_nothing_else_does(bench: ErasureBench) -> None:
    hot, remote = bench.records(remote=False), bench.records(remote=True)
    result = bench.erase("ann", "nobody")
    assert bench.records(remote=False) == {at: one for at, one in hot.items() if at not in ANN}
    assert bench.records(remote=True) == {at: one for at, one in remote.items() if at not in ANN}
    assert b"ann" not in bench.everything()
    assert [(one.tier, one.records, one.segments_matched) for one in result.partitions] == [
        ("hot", 5, 3),
        ("cold", 4, 2),
    ]
    assert bench.topic.log.end_offset == 11
    bench.check()


def test_segments_without_a_match_are_left_alone(bench: ErasureBench) -> None:
    before = [one.id for one in bench.topic.remote()]
    bench.erase("cy")
    after = [one.id for one in bench.topic.remote()]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True]


def test_a_dry_run_tells_and_changes_nothing(bench: ErasureBench) -> None:
    before, version = bench.everything(), bench.topic.manifest().version
    result = bench.erase("ann", is_dry_run=True)
    assert result.is_dry_run
    assert result.receipt is None
    assert result.records == 9
    assert result.cost is not None
    assert result.cost.read_bytes > 0
    assert bench.everything() == before
    assert bench.topic.manifest().version == version


def test_finding_by_key_reads_the_data_of_matching_segments_alone() -> None:
    made = compacted()
    for number in range(6):
        made.put(*(f"key-{number}-{one}" for one in range(20)), value="x" * 500)
        made.roll()
    made.copy()
    result = made.erase("key-3-7", is_dry_run=True)
    (remote,) = [one for one in result.partitions if one.tier == "cold"]
    sizes = [one.size for one in made.topic.remote()]
    assert remote.segments == 6
    assert remote.bytes_read == sizes[3]


@pytest.mark.parametrize("make_bench", [compacted, ErasureBench], ids=["indexed", "scanned"])
@pytest.mark.parametrize("field", [None, BY_EMAIL])
def test_what_tasks_return_does_not_grow_with_matches(
    make_bench: Callable[[], ErasureBench], field: FieldMatch | None
) -> None:
    largest = []
    for count in (100, 10_000):
        bench = make_bench()
        bench.put(*["ann"] * count, "bob", value='{"email": "ann@x"}')
        bench.roll()
        bench.copy()
        bench.runner = runner = TravellingRunner()
        keys = [] if field is not None else ["ann"]
        assert bench.erase(*keys, field=field, hot=False).records >= count
        largest.append(runner.outcome_bytes)
    assert largest[1] < largest[0] + 100


def test_a_producer_goes_on_behind_its_erased_records() -> None:
    made = ErasureBench.plain()
    made.put("ann", producer_id=7)
    made.end(7, committed=True)
    made.roll()
    made.erase("ann", remote=False)
    made.topic.kit.reopen()
    made.put("bob", producer_id=7)
    made.end(7, committed=True)
    assert [one.key for one in made.topic.topic.read()] == [b"bob"]


def test_what_was_replaced_before_and_waits_for_readers_goes_as_well(bench: ErasureBench) -> None:
    bench.erase("bob", grace_ms=60_000)
    waiting = [one for one in bench.topic.remote() if one.state is SegmentState.DELETE_STARTED]
    assert len(waiting) == 2
    bench.erase("ann")
    assert b"ann" not in bench.everything()
    left = [one for one in bench.topic.remote() if one.state is SegmentState.DELETE_STARTED]
    assert [one.base_offset for one in left] == [3], "the other one never held her"


def test_with_a_grace_time_the_receipt_comes_when_it_is_finished(bench: ErasureBench) -> None:
    result = bench.erase("ann", id="slow", grace_ms=60_000)
    assert result.receipt is None
    assert result.finish_ms == bench.topic.kit.now_ms + 60_000
    with pytest.raises(Unavailable, match="another 1 min"):
        bench.erase("ann", id="slow", is_finish=True)
    bench.topic.kit.advance(minutes=1)
    assert bench.receipt("ann", id="slow", is_finish=True)["records"] == 9
    assert b"ann" not in bench.everything()


def test_where_no_object_was_replaced_a_grace_time_has_nothing_to_wait_for() -> None:
    made = ErasureBench.plain()
    made.put("ann", "bob")
    assert made.erase("ann", remote=False, grace_ms=60_000).receipt is not None


def test_what_was_never_begun_cannot_be_finished(bench: ErasureBench) -> None:
    with pytest.raises(NotFound, match="no evidence of an erasure other"):
        bench.erase("ann", id="other", is_finish=True)


def test_what_is_copied_meanwhile_is_taken_in_another_pass(bench: ErasureBench) -> None:
    def copy() -> None:
        bench.roll()
        bench.copy()

    bench.runner = InterferingRunner(copy, stage="rewrite")
    assert bench.receipt("ann", hot=False)["passes"] > 1
    assert set(bench.records(remote=True)) & ANN == set()


def test_an_object_that_nothing_names_keeps_the_receipt_back(bench: ErasureBench) -> None:
    key = f"{bench.home.segment_folder}00000000000000000000-lost/log"
    bench.topic.bucket.put(key, bench.remote_data()[0])
    with pytest.raises(NotErased, match=r"lost/log \(2 records\).*fsck --sweep"):
        bench.erase("ann")
    assert not [one for one in bench.topic.object_keys() if "/receipt/" in one]
    assert [one for one in bench.topic.object_keys() if "/erasure/" in one], "it was begun"
    bench.topic.bucket.delete([key])
    assert bench.erase("ann").receipt is not None


def test_a_key_index_that_misses_a_key_is_found_out(bench: ErasureBench) -> None:
    """The re-scan reads the data; what it finds is taken in another pass."""
    first = bench.topic.remote()[0]
    key = bench.home.part_key(first, "keys")
    data = bytearray(bench.topic.bucket.get(key))
    data[128 : 128 + 32 * 2] = data[128 + 32 : 128 + 64] * 2
    bench.topic.bucket.put(key, bytes(data))
    bench.erase("ann", "bob")
    assert set(bench.records(remote=True)) == {4, 5, 7}


def test_the_receipt_names_objects_and_never_a_key(bench: ErasureBench) -> None:
    deadline = bench.topic.kit.now_ms + 1000
    result = bench.erase("ann", deadline_ms=deadline, id="first")
    receipt = result.receipt
    assert receipt is not None
    text = json.dumps(receipt)
    assert "ann" not in text
    assert receipt["deadline_met"] is True
    assert receipt["request"]["keys"]["count"] == 1
    hot, remote = sorted(
        receipt["topics"][0]["partitions"], key=lambda one: one["tier"], reverse=True
    )
    assert (hot["records"], remote["records"]) == (5, 4)
    live = {bench.home.part_key(one, "log") for one in bench.topic.remote()}
    assert {one["after"]["key"] for one in remote["objects"]} <= live
    assert not {one["before"]["key"] for one in remote["objects"]} & live
    assert receipt["rescan"]["found"] == 0
    assert receipt["rescan"]["objects"] == 3
    (key,) = [one for one in bench.topic.object_keys() if "/receipt/" in one]
    assert result.receipt_places == (f"memory:/{key}",)
    assert json.loads(bench.topic.bucket.get(key)) == receipt


def test_an_erasure_that_is_run_again_tells_what_the_first_run_did(bench: ErasureBench) -> None:
    first, again = bench.receipt("ann", id="same"), bench.receipt("ann", id="same")
    assert again["records"] == first["records"] == 9
    assert bench.receipt("ann", id="other")["records"] == 0


@pytest.mark.parametrize("remote", [True, False])
def test_an_id_is_that_of_one_request(remote: bool) -> None:
    made = ErasureBench() if remote else ErasureBench.plain()
    made.put("ann", "bob", "cy")
    made.roll()
    if remote:
        made.copy()
    first = made.erase("ann", id="same", remote=remote)
    for is_dry_run, is_finish in ((True, False), (False, False), (False, True)):
        with pytest.raises(InvalidRequest, match="erasure same was of other keys"):
            made.erase("bob", id="same", remote=remote, is_dry_run=is_dry_run, is_finish=is_finish)
    with pytest.raises(InvalidRequest, match="other keys"):
        made.erase("ann", "bob", id="same", remote=remote)
    with pytest.raises(InvalidRequest, match="other fields"):
        made.erase("ann", id="same", field=BY_EMAIL, remote=remote)
    assert set(made.records(remote=remote)) == {1, 2}
    again = made.erase("ann", id="same", remote=remote)
    assert first.receipt_places == again.receipt_places
    assert again.receipt is not None
    assert again.receipt["records"] == 1 + remote


def test_what_was_begun_and_has_no_receipt_yet_is_of_one_request_too(bench: ErasureBench) -> None:
    bench.erase("ann", id="slow", field=BY_EMAIL, grace_ms=60_000)
    bench.topic.kit.advance(minutes=1)
    for path, value, other in (("email", "bob@x", "values"), ("mail", "ann@x", "fields")):
        changed = FieldMatch.of(path, [value], ValueFormat.JSON)
        with pytest.raises(InvalidRequest, match=f"was of other {other}"):
            bench.erase("ann", id="slow", field=changed, is_finish=True)
    assert [one for one in bench.topic.object_keys() if "/erasure/" in one]
    assert bench.erase("ann", id="slow", field=BY_EMAIL, is_finish=True).receipt is not None
    assert not [one for one in bench.topic.object_keys() if "/erasure/" in one]


def test_a_receipt_without_digests_is_not_replaced(bench: ErasureBench) -> None:
    bench.erase("ann", id="bare", lists_digests=False)
    with pytest.raises(InvalidRequest, match=r"lists no digests.*take another --id"):
        bench.erase("ann", id="bare", lists_digests=False)


def test_a_document_of_the_erasure_that_cannot_be_read_is_named(bench: ErasureBench) -> None:
    (place,) = bench.erase("ann", id="same").receipt_places
    bench.topic.bucket.put(place.removeprefix("memory:/"), b"{}")
    with pytest.raises(Corrupt, match=r"receipt/same\.json: cannot be read as a document"):
        bench.erase("ann", id="same")


def test_what_outputs_could_not_do_is_told_with_the_result(
    bench: ErasureBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of the outputs those alone count that were read."""
    for name in ("there", "gone"):
        bench.register(OutputKind.TABLE, place="/tables", name=name)

    def erase(erasure: OutputErasure, wanted: ErasedRows) -> ErasedOutput:
        output = erasure.output
        told = (f"table {output.name} is not there",) if output.name == "gone" else ()
        return ErasedOutput(output.id, 0, (), (), (), told, is_there=not told)

    monkeypatch.setattr(OutputErasure, "erase", erase)
    monkeypatch.setattr(OutputErasure, "count", lambda *given: 0)
    waiting = bench.erase("ann", id="slow", grace_ms=60_000)
    assert "table gone is not there" in waiting.out_of_reach
    result = bench.erase("eve")
    assert result.receipt is not None
    assert "table gone is not there" in result.out_of_reach
    assert list(result.out_of_reach) == result.receipt["out_of_reach"]
    assert result.receipt["rescan"]["outputs"] == 1


def test_a_swap_that_is_not_noted_as_carried_out_counts(
    bench: ErasureBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_power(file: RemovalLog, id: int) -> None:
        raise PowerLoss

    with monkeypatch.context() as patch:
        patch.setattr(RemovalLog, "mark_done", lose_power)
        with pytest.raises(PowerLoss):
            bench.erase("ann", id="same")
    assert bench.receipt("ann", id="same")["records"] == 9


def test_a_missed_deadline_is_told(bench: ErasureBench) -> None:
    receipt = bench.receipt("ann", deadline_ms=bench.topic.kit.now_ms - 1)
    assert receipt["deadline_met"] is False


def test_key_indexes_can_stand_for_the_data_of_live_segments(bench: ErasureBench) -> None:
    full = bench.receipt("ann")
    keys = bench.receipt("ann", rescan=RescanMode.KEYS)
    assert keys["rescan"]["mode"] == "keys"
    assert keys["rescan"]["objects"] == full["rescan"]["objects"]
    assert keys["rescan"]["records"] < full["rescan"]["records"]
    assert any("key indexes rule" in one for one in keys["out_of_reach"])


def test_a_field_of_json_values_is_looked_for_everywhere() -> None:
    made = ErasureBench()
    made.put("1", value='{"customer": {"email": "ann@x", "n": 7}}')
    made.put("2", value='{"customer": {"email": "bob@x"}}')
    made.put("3", value="not json")
    made.put(None, value='{"customer": [{"email": "ann@x"}]}')
    made.roll()
    made.copy()
    field = FieldMatch.of("customer.email", ["ann@x"], ValueFormat.JSON)
    result = made.erase(field=field)
    assert set(made.records(remote=True)) == set(made.records(remote=False)) == {1, 2}
    receipt = result.receipt
    assert receipt is not None
    assert "2 values that could not be read as JSON." in receipt["out_of_reach"]
    assert "ann@x" not in json.dumps(receipt)
    made.check()


def test_a_topic_on_the_local_disk_alone_is_erased_and_keeps_its_receipt() -> None:
    made = ErasureBench.plain()
    made.put("ann", "bob")
    result = made.erase("ann", remote=False, id="here")
    assert result.receipt_places == (f"{made.topic.kit.path}/varve-receipt-here.json",)
    assert json.loads(made.fs.read(result.receipt_places[0])) == result.receipt
    assert set(made.records(remote=False)) == {1}
    made.check()


def test_unknown_topics_and_empty_requests_are_named() -> None:
    made = ErasureBench.plain()
    with pytest.raises(InvalidRequest, match="give the keys to erase"):
        made.erase(remote=False)
    with pytest.raises(InvalidRequest, match="must be 1 to 64 letters"):
        made.erase("ann", remote=False, id="../x")
    with pytest.raises(InvalidRequest, match="object store, the log directory, or both"):
        made.erase("ann", remote=False, hot=False)


def test_files_and_topics_elsewhere_are_named_as_out_of_reach(bench: ErasureBench) -> None:
    for kind, place in (
        (OutputKind.FILES, "/exports"),
        (OutputKind.TOPIC, "/other"),
        (OutputKind.CHECKPOINT, "/checkpoint"),
    ):
        bench.register(kind, place=place, name="copy")
    receipt = bench.receipt("ann")
    assert "topic copy at /other was made of orders: erase it there" in receipt["out_of_reach"]
    assert any("files at /exports" in one for one in receipt["out_of_reach"])
    assert any("checkpoint at /checkpoint" in one for one in receipt["out_of_reach"])


@pytest.mark.parametrize(
    ("registered", "reachable"),
    [
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("S3://bucket/prefix", "s3://bucket/prefix/"),
        ("file:/data%20a/", "/data a"),
        ("/data:1/x", "file:/data%3A1/x"),
    ],
)
def test_a_derived_topic_is_reachable_however_its_location_is_written(
    registered: str, reachable: str
) -> None:
    registry = RemoteOutputRegistry(MemoryObjectStore(), "cluster")
    output = DerivedOutput(
        kind=OutputKind.TOPIC, topic="orders", topic_id="id", place=registered, name="copy"
    )
    registry.note(output)
    found = find_topic_outputs([registry], "orders", "id", reachable=[reachable])
    assert (found.topics, found.out_of_reach) == ((output,), ())


def test_a_staging_folder_is_out_of_reach_only_while_it_holds_files(tmp_path: Path) -> None:
    directory, staging = tmp_path / "data", tmp_path / "data.staging"
    with varve.open(directory, maintain=False) as store:
        store.create_topic("orders").append(key="ann", value="1")
    (staging / ".varve-writing").mkdir(parents=True)

    def out_of_reach() -> str:
        request = ErasureRequest(topics=("orders",), id=new_erasure_id(), keys=frozenset([b"ann"]))
        return "\n".join(
            erase(request, directories=[str(directory)], runner=LocalRunner()).out_of_reach
        )

    assert str(staging) not in out_of_reach()
    (staging / ".varve-writing" / "batches").write_bytes(b"ann")
    assert f"{staging}: " in out_of_reach()


def test_rows_that_an_output_keeps_are_told_with_their_reason(
    bench: ErasureBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = bench.register(OutputKind.TABLE, place="/tables", name="shop.orders")
    kept = ErasedOutput(output.id, 0, (), (), (), ("tag keep holds it: drop it",))
    monkeypatch.setattr(OutputErasure, "erase", lambda *given: kept)
    monkeypatch.setattr(OutputErasure, "count", lambda *given: 3)
    with pytest.raises(NotErased, match=r"3 rows .* table shop\.orders .*: tag keep holds it"):
        bench.erase("ann")


def test_a_note_in_the_bucket_is_forgotten_there(bench: ErasureBench) -> None:
    output = bench.register(OutputKind.SNAPSHOT, place="/nowhere/at/all", name="daily")
    with pytest.raises(Unavailable, match=f"varve output forget orders {output.id}"):
        bench.erase("ann")
    assert not [one for one in bench.topic.object_keys() if "/erasure/" in one], "nothing was done"
    assert list_outputs(bench.places(), "orders") == [output]
    assert forget_output(bench.places(), "orders", output.id) == output
    assert list_outputs(bench.places(), "orders") == []
    assert bench.erase("ann").receipt is not None


def test_a_topic_that_was_made_of_another_is_erased_with_it() -> None:
    made = ErasureBench.plain()
    store, path = made.topic.kit.store, made.topic.kit.path
    made.put("ann", "bob")
    copy = store.create_topic("copy")
    for key in ("bob", "ann", "cy"):
        copy.append(key=key, value="derived")
    topic_id = encode_topic_id(made.topic.topic.id or uuid4())
    LocalOutputRegistry(path, made.fs).note(
        DerivedOutput(
            kind=OutputKind.TOPIC, topic="orders", topic_id=topic_id, place=path, name="copy"
        )
    )
    receipt = made.receipt("ann", remote=False)
    assert [one.key for one in copy.read()] == [b"bob", b"cy"]
    assert [one["topic"] for one in receipt["topics"]] == ["orders", "copy"]


def test_both_sides_of_a_mirror_lose_the_records(bench: ErasureBench) -> None:
    second = MemoryObjectStore()
    for one in bench.topic.bucket.list(""):
        second.put(one.key, bench.topic.bucket.get(one.key))
    mirrored = MirroredObjectStore(bench.topic.bucket, second, clock=bench.topic.kit.clock)
    assert bench.erase("ann", objects=mirrored, hot=False).receipt is not None
    logs = [one.key for one in second.list("") if one.key.endswith("/log")]
    assert logs == [one for one in bench.topic.object_keys() if one.endswith("/log")]
    for store in (bench.topic.bucket, second):
        assert not any(b"ann" in bytes(store.get(key)) for key in logs)


def test_indexes_of_replaced_segments_leave_the_local_cache(bench: ErasureBench) -> None:
    bench.topic.move(5)
    cache = f"{bench.topic.kit.path}/{REMOTE_INDEX_CACHE_DIRECTORY}"
    bench.fs.make_directory(cache)
    names = [index_name(one, "index") for one in bench.topic.remote()]
    for name in names:
        with bench.fs.open_writable(f"{cache}/{name}") as file:
            file.write_at(0, b"entries")
    bench.erase("ann")
    assert bench.fs.names(cache) == [names[1]]
    assert not ANN & set(bench.records(remote=True))
    assert not ANN & set(bench.records(remote=False))


@pytest.mark.parametrize("hot", [True, False], ids=["hot", "cold"])
def test_a_store_goes_on_where_one_tier_alone_was_erased(hot: bool) -> None:
    """Its copies and local retention compare the tiers; an erasure explains what differs."""
    made = ErasureBench(TieredTopic(topic_settings={"local.retention.ms": 1}))
    made.put("ann", "bob")
    made.roll()
    made.copy()
    made.erase("ann", hot=hot, remote=not hot)
    made.put("cy")
    made.roll()
    made.copy()
    assert made.topic.remote_bases() == [0, 2]
    made.topic.kit.advance(hours=1)
    made.topic.kit.run_background()
    assert made.topic.bases() == [3], "what is copied left the local disk"
    keys = [one.key for one in made.topic.topic.read()]
    assert keys == ([b"ann", b"bob", b"cy"] if hot else [b"bob", b"cy"])


def test_a_store_that_reads_the_bucket_finds_its_way_after_an_erasure_beside_it(
    bench: ErasureBench,
) -> None:
    """Objects that its manifest names are gone: it asks for a newer one."""
    bench.topic.move(9)
    assert bench.topic.offsets() == list(range(11))
    bench.erase("ann", hot=False)
    assert bench.topic.offsets() == [1, 3, 4, 5, 7, 9, 10]


def test_few_keys_are_looked_up_and_many_are_read_along() -> None:
    made = compacted()
    made.put(*(f"key-{one}" for one in range(4000)))
    made.roll()
    made.copy()
    for keys in (["key-17"], [f"key-{one}" for one in range(40, 140)]):
        (remote,) = made.erase(*keys, is_dry_run=True, hot=False).partitions
        assert remote.records == len(keys)
        others = [f"no-{one}" for one in keys]
        (remote,) = made.erase(*others, is_dry_run=True, hot=False).partitions
        assert (remote.records, remote.bytes_read) == (0, 0)


@pytest.mark.parametrize("hot", [True, False], ids=["with the log", "beside a server"])
def test_a_copy_that_was_cut_short_is_taken_back_by_who_has_the_log(
    bench: ErasureBench, hot: bool
) -> None:
    last = bench.topic.remote()[-1]
    data = bench.hot_data()[-1]
    announced = replace(
        last,
        id="cut-short",
        base_offset=9,
        end_offset=10,
        size=len(data),
        epochs=((last.epochs[0][0], 9),),
        parts=(ObjectPart("log", len(data), 0),),
        state=SegmentState.COPY_STARTED,
    )
    bench.topic.tiered.commit(lambda manifest: manifest.announce(announced), 1)
    key = bench.home.part_key(announced, "log")
    bench.topic.bucket.put(key, data)
    if hot:
        assert bench.erase("ann").receipt is not None
        assert key not in bench.topic.object_keys()
    else:
        with pytest.raises(NotErased, match=r"cut-short/log.*once running copies have ended"):
            bench.erase("ann", hot=False)
        assert key in bench.topic.object_keys()


class _Versioned(MemoryObjectStore):
    """A bucket that keeps versions, as its answers tell."""

    def head(self, key: str) -> ObjectInfo:
        return replace(super().head(key), version="v1")


def test_versions_that_the_bucket_keeps_are_named_as_out_of_reach() -> None:
    made = ErasureBench(TieredTopic(bucket=_Versioned()))
    made.put("ann", "bob")
    made.roll()
    made.copy()
    receipt = made.receipt("ann")
    assert any("The bucket keeps versions" in one for one in receipt["out_of_reach"])
    (remote,) = [one for one in receipt["topics"][0]["partitions"] if one["tier"] == "cold"]
    assert remote["objects"][0]["before"]["version"] == "v1"


def test_a_topic_that_cannot_show_its_erasure_is_in_the_receipt(
    bench: ErasureBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise Unavailable("the disk is full")

    monkeypatch.setattr(bench.topic.kit.store, "alter_topic", refuse)
    (first, *_) = bench.receipt("ann")["out_of_reach"]
    assert "derived from orders" in first
    assert "the disk is full" in first
