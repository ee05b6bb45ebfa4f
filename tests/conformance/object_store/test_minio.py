"""What S3 servers do, seen on MinIO: leftovers, prefixes, refusals, races of processes."""

import secrets
from collections.abc import Callable, Iterator

import pytest

from tests.contract.object_store import test_restore_and_fsck, test_s3
from tests.contract.object_store.test_two_processes import race_to_create
from tests.support.manifest_race import race_to_commit, race_with_a_kill
from tests.support.s3_server import BUCKET, S3Server
from varve.foundation.errors import StoreDenied
from varve.object_store import ObjectStore, open_object_store

pytestmark = pytest.mark.go

test_uploads_are_aborted = test_s3.test_an_upload_that_broke_off_is_aborted
test_prefixes_are_apart = test_s3.test_prefixes_are_apart
test_the_mark_of_the_check_is_not_listed = test_s3.test_the_mark_of_the_check_is_not_listed
test_a_missing_bucket_has_its_own_error = test_s3.test_a_missing_bucket_has_its_own_error
test_restore = test_restore_and_fsck.test_what_was_copied_comes_back_and_leftovers_go


def _url() -> str:
    return f"s3://{BUCKET}/{secrets.token_hex(8)}"


@pytest.fixture
def objects(s3: S3Server) -> Iterator[ObjectStore]:
    store = open_object_store(_url(), s3.settings)
    yield store
    store.close()


def test_each_object_is_created_by_one_of_two_processes(s3: S3Server) -> None:
    race_to_create(_url(), s3.settings, count=2_000)


def test_no_commit_to_a_manifest_is_lost_or_doubled(s3: S3Server) -> None:
    count = race_to_commit(_url(), s3.settings, rounds=260, timeout_seconds=200)
    assert count > 2_000


def test_a_killed_writer_leaves_a_chain_that_the_other_goes_on_with(s3: S3Server) -> None:
    for killed_after in (1, 11):
        race_with_a_kill(_url(), s3.settings, rounds=12, killed_after=killed_after)


def test_a_list_of_several_pages_is_whole_and_in_order(objects: ObjectStore) -> None:
    keys = [f"a/{number:05}" for number in range(2_300)]
    for key in keys:
        objects.put(key, b"")
    assert [info.key for info in objects.list("a")] == keys
    assert [info.key for info in objects.list("a", start_after=keys[999])] == keys[1000:]
    objects.delete(keys)
    assert list(objects.list("a")) == []


@pytest.mark.parametrize("name", ["access.key.id", "secret.access.key"])
def test_wrong_credentials_are_denied(s3: S3Server, name: str) -> None:
    settings = {**s3.settings, name: "wrong-and-long-enough"}
    with pytest.raises(StoreDenied, match="check the credentials"):
        open_object_store(_url(), settings)
    store = open_object_store(_url(), {**settings, "conditional.put.check": False})
    calls: list[Callable[[], object]] = [
        lambda: store.get("a"),
        lambda: store.head("a"),
        lambda: store.put_parts("a", [bytes(9 << 20)], size=9 << 20),
        lambda: list(store.list("")),
        lambda: store.delete(["a"]),
    ]
    for call in calls:
        with pytest.raises(StoreDenied):
            call()


def test_a_wrong_region_is_told(s3: S3Server) -> None:
    with pytest.raises(StoreDenied, match="region"):
        open_object_store(_url(), {**s3.settings, "region": "eu-central-1"})
