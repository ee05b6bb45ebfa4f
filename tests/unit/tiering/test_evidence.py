"""Evidence in the bucket: single expiries go into an archive whose chain shows every change."""

import json
from dataclasses import replace

import pytest

from tests.support.balances import make_expiry
from varve.cleaning.removals.removal import Removal
from varve.foundation.errors import Corrupt, StoreError
from varve.object_store import MemoryObjectStore
from varve.testing import FaultKind, FaultyObjectStore
from varve.tiering import evidence
from varve.tiering.evidence import archive_expiries, decode_evidence, put_expiry, read_archive
from varve.tiering.manifest.paths import RemotePath

PATH = RemotePath("cluster", "orders", "AAAAAAAAAAAAAAAAAAAAAA", 0)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "EXPIRIES_MAX", 8)


def expiry(number: int) -> Removal:
    return replace(make_expiry(1), at_ms=number, end_offset=1_000 * number)


def record(bucket: MemoryObjectStore, *numbers: int) -> None:
    for number in numbers:
        put_expiry(bucket, PATH, f"{1_000 * number:020}-{number}", expiry(number))


def keys(bucket: MemoryObjectStore) -> list[str]:
    return [info.key for info in bucket.list(PATH.evidence_folder)]


def on_record(bucket: MemoryObjectStore) -> list[int]:
    found = {one.at_ms for key in keys(bucket) for one in decode_evidence(bucket.get(key), key)}
    return sorted(found)


def test_objects_stay_bounded_and_every_expiry_on_record() -> None:
    bucket = MemoryObjectStore()
    for number in range(1, 50):
        record(bucket, number)
        archive_expiries(bucket, PATH)
        assert len(keys(bucket)) <= 9
    assert on_record(bucket) == list(range(1, 50))
    (archive,) = [key for key in keys(bucket) if "archive-" in key]
    assert read_archive(bucket.get(archive), archive).count >= 40


def test_the_oldest_leave_their_chain_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "ARCHIVE_BYTES_MAX", 1_500)
    bucket = MemoryObjectStore()
    for number in range(1, 50):
        record(bucket, number)
        archive_expiries(bucket, PATH)
    (key,) = [key for key in keys(bucket) if "archive-" in key]
    archive = read_archive(bucket.get(key), key)
    assert len(bucket.get(key)) < 3_000
    assert archive.dropped > 30
    chain = evidence.FIRST_CHAIN
    for number in range(1, archive.count + 1):
        chain = evidence._extend(chain, [expiry(number)])
    assert archive.chain == chain, "whoever kept the removals can prove them"


@pytest.mark.parametrize("field", ["balances", "carried", "chain"])
def test_a_changed_archive_is_corrupt(field: str) -> None:
    bucket = MemoryObjectStore()
    record(bucket, *range(1, 20))
    archive_expiries(bucket, PATH)
    (key,) = [key for key in keys(bucket) if "archive-" in key]
    document = json.loads(bucket.get(key))
    if field == "balances":
        document["balances"][2]["at_ms"] += 1
    else:
        document[field] = "1" * 64
    with pytest.raises(Corrupt, match="its chain does not match"):
        read_archive(json.dumps(document).encode(), key)


@pytest.mark.parametrize("kind", [FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER])
def test_an_archiving_that_fails_anywhere_is_finished_by_the_next(kind: FaultKind) -> None:
    for step in range(1, 40):
        bucket = MemoryObjectStore()
        record(bucket, *range(1, 12))
        archive_expiries(bucket, PATH)
        record(bucket, *range(12, 25))
        store = FaultyObjectStore(bucket)
        store.fail_at(step, kind)
        try:
            archive_expiries(store, PATH)
            is_over = True
        except StoreError:
            is_over = False
        assert on_record(bucket) == list(range(1, 25))
        record(bucket, *range(25, 30))
        archive_expiries(bucket, PATH)
        assert on_record(bucket) == list(range(1, 30))
        (archive,) = [key for key in keys(bucket) if "archive-" in key]
        assert read_archive(bucket.get(archive), archive).removals
        if is_over:
            return
