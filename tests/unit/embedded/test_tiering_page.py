"""What docs/how-to/tier-to-a-bucket.md says of an open store."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import varve
from varve import errors
from varve.object_store import MemoryObjectStore
from varve.testing import FaultyObjectStore, VirtualStore

DAY_MS = 86_400_000
TIERED = {
    "remote.storage.enable": True,
    "retention.ms": 300 * DAY_MS,
    "local.retention.ms": 2 * DAY_MS,
    "segment.ms": DAY_MS,
}


@pytest.fixture
def bucket() -> FaultyObjectStore:
    return FaultyObjectStore(MemoryObjectStore())


@pytest.fixture
def kit(bucket: FaultyObjectStore) -> Iterator[VirtualStore]:
    """Twenty records in both tiers, one a day; the first eighteen are in the bucket alone."""
    with VirtualStore(objects=bucket) as kit:
        kit.store.create_topic("visits", settings=TIERED)
        _go_on(kit, 20)
        yield kit
        bucket.come_up()


def _go_on(kit: VirtualStore, days: int) -> None:
    for _ in range(days):
        kit.store.topic("visits").append(value="x" * 50)
        kit.advance(days=1)
        kit.run_background()


def _bases_in_bucket(kit: VirtualStore) -> list[int]:
    keys = [one.key for one in kit.objects.list("") if "/segment/" in one.key]
    return sorted({int(key.split("/segment/")[1][:20]) for key in keys})


def _read(kit: VirtualStore) -> list[int]:
    return [record.offset for record in kit.store.topic("visits").read()]


def test_by_default_the_tier_is_beside_the_directory_which_remembers_it(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with varve.open(path, maintain=False) as store:
        settings = {"remote.storage.enable": True, "segment.bytes": 1000}
        visits = store.create_topic("visits", settings=settings)
        for _ in range(30):
            visits.append(value="x" * 100)
        store.run_once()
    assert (tmp_path / "data.cold").is_dir()
    document = json.loads((path / "varve-tier.json").read_text("utf-8"))
    assert document == {"format": 1, "url": f"file:{path}.cold", "metadata": "object"}
    elsewhere = {"varve.tier.url": f"file:{tmp_path}/elsewhere"}
    with pytest.raises(errors.InvalidSetting, match=r"varve-tier\.json"):
        varve.open(path, settings=elsewhere, maintain=False).tier.close()


def test_the_first_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "tier-to-a-bucket.md").read_text(
        "utf-8"
    )
    example = page.split("```python\n")[1].split("```")[0]
    assert "s3://bucket/prefix" in example
    monkeypatch.chdir(tmp_path)
    exec(example.replace("s3://bucket/prefix", f"file:{tmp_path}/bucket"), {})
    with varve.open("data", maintain=False) as store:
        assert [record.offset for record in store.topic("audit").read()] == [0]


def test_deleted_records_leave_reads_at_once_and_the_bucket_after_the_grace(
    kit: VirtualStore,
) -> None:
    visits = kit.store.topic("visits")
    bases = _bases_in_bucket(kit)
    visits.delete_records(5)
    assert _read(kit) == list(range(5, 20))
    with pytest.raises(errors.OffsetOutOfRange):
        next(visits.read(start=4))
    kit.run_background()
    assert _bases_in_bucket(kit) == bases
    kit.advance(days=7, seconds=1)
    kit.run_background()
    assert _bases_in_bucket(kit) == [base for base in bases if base >= 4]


def test_copying_can_rest_and_go_on_and_nothing_is_missed(kit: VirtualStore) -> None:
    with pytest.raises(errors.InvalidSetting, match=r"local\.retention\.ms"):
        kit.store.alter_topic("visits", {"remote.log.copy.disable": True})
    resting = {"remote.log.copy.disable": True, "local.retention.ms": None}
    kit.store.alter_topic("visits", resting)
    bases = _bases_in_bucket(kit)
    _go_on(kit, 10)
    assert _bases_in_bucket(kit) == bases
    assert _read(kit) == list(range(30))
    copying = {"remote.log.copy.disable": None, "local.retention.ms": 2 * DAY_MS}
    kit.store.alter_topic("visits", copying)
    _go_on(kit, 1)
    assert len(_bases_in_bucket(kit)) > len(bases)
    assert _read(kit) == list(range(31))


def test_a_store_opens_and_serves_its_disk_while_the_bucket_is_away(
    kit: VirtualStore, bucket: FaultyObjectStore
) -> None:
    bucket.go_down()
    visits = kit.reopen().topic("visits")
    visits.append(value="still here")
    local_start = visits.offsets().local_start
    assert [one.offset for one in visits.read(start=local_start)] == list(range(local_start, 21))
    with pytest.raises(errors.StoreUnavailable, match="offset 0 is in the remote tier"):
        next(visits.read())
    bucket.come_up()
    assert _read(kit) == list(range(21))


def test_a_partition_at_rest_asks_the_bucket_for_little(
    kit: VirtualStore, bucket: FaultyObjectStore
) -> None:
    _rest(kit)
    before = len(bucket.trace)
    _rest(kit)
    asked = Counter(step.operation for step in bucket.trace[before:])
    assert asked.keys() <= {"list", "get"}
    assert asked.total() <= 8


def _rest(kit: VirtualStore) -> None:
    """An hour in which nothing is due, looked at every thirty seconds."""
    for _ in range(120):
        kit.advance(seconds=30)
        kit.run_background()
