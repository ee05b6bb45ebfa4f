"""Snapshots of a topic whose cold tier is in a bucket, and erasures there, over HTTP."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import varve
from tests.support.s3_server import BUCKET, S3Server, s3_server
from tests.support.snapshot_topic import SMALL, Rows, rows_of
from varve.cli.main import app
from varve.foundation.errors import (
    BucketNotFound,
    InvalidSetting,
    StoreDenied,
    StoreError,
)
from varve.foundation.settings import GivenValue
from varve.jobs.erase.erasure import erase
from varve.jobs.erase.request import ErasureRequest
from varve.jobs.erase.result import ErasureResult
from varve.jobs.snapshot.snapshot import SnapshotResult, SnapshotSettings, take_snapshot
from varve.jobs.snapshot.store import open_snapshot
from varve.jobs.tasks import LocalRunner
from varve.jobs.tier.bucket import Bucket
from varve.object_store import open_object_store

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of botocore and werkzeug

LARGE = replace(SMALL, split_bytes=1 << 20, buckets=2)
UNCHECKED: dict[str, GivenValue] = {"conditional.put.check": False}
"""As it is for Amazon's own servers: the opening asks nothing, the first request does."""
WRONG: dict[str, GivenValue] = {
    **UNCHECKED,
    "access.key.id": "somebody",
    "secret.access.key": "TOPSECRET",
}


@dataclass
class Bench:
    """A topic in a log directory and a bucket, and snapshots in the bucket."""

    server: S3Server
    data: str
    bucket: str = BUCKET

    @property
    def settings(self) -> dict[str, GivenValue]:
        return self.server.settings

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/varve"

    @property
    def place(self) -> str:
        return f"s3://{self.bucket}/state/people"

    def open(self) -> varve.Store:
        given = {f"varve.tier.store.{name}": value for name, value in self.settings.items()}
        given["varve.tier.url"] = self.url
        return varve.open(self.data, settings=given, maintain=False)

    def put(self, *keys: str, is_copied: bool = True, value: str = "v") -> None:
        with self.open() as store:
            names = {one.name for one in store.topics()}
            topic = (
                store.topic("people")
                if "people" in names
                else store.create_topic("people", settings={"remote.storage.enable": True})
            )
            for key in keys:
                topic.append(key=key, value=f"{value} of {key}")
            log = topic.partition(0).log
            if is_copied:
                log.roll()
                assert store.tier is not None
                report = store.tier.copy(log.topic_partition, 1 << 50)
                assert report.error is None, report.error

    def move(self) -> None:
        """Lets the first segment be in the bucket alone."""
        with self.open() as store:
            log = store.topic("people").partition(0).log
            log.drop_local_segments_before(3, now_ms=1 << 50)
            assert log.local_start_offset == 3

    def cluster(self) -> str:
        (found,) = open_object_store(self.url, self.settings).list_directories("")
        return found.strip("/")

    def address(
        self, url: str = "", more: dict[str, GivenValue] | None = None, cluster: str | None = None
    ) -> Bucket:
        given = {**self.settings, **(more or {})}
        return Bucket(url or self.url, tuple(given.items()), cluster)

    def take(
        self,
        settings: SnapshotSettings = LARGE,
        *,
        address: Bucket | None = None,
        place: str = "",
        more: dict[str, GivenValue] | None = None,
    ) -> SnapshotResult:
        return take_snapshot(
            "people",
            place or self.place,
            address=address or self.address(),
            directories=[self.data],
            place_settings={**self.settings, **(more or {})},
            settings=settings,
            runner=LocalRunner(),
        )

    def rows(self, snapshot: int | None = None) -> Rows:
        return rows_of(open_snapshot(self.place, snapshot, settings=self.settings))

    def cli(self, *words: str) -> Result:
        given = [f"--place-set={name}={value}" for name, value in self.settings.items()]
        return CliRunner().invoke(app, ["snapshot", *words, *given])

    def erase(
        self, *keys: str, address: Bucket | None = None, is_hot: bool = True
    ) -> ErasureResult:
        request = ErasureRequest(
            topics=("people",), id="request-1", keys=frozenset(one.encode() for one in keys)
        )
        return erase(
            request,
            address=address or self.address(),
            directories=[self.data] if is_hot else [],
            runner=LocalRunner(),
        )

    def everything(self) -> bytes:
        """Every byte of the bucket and the log directory but evidence and marks."""
        objects = open_object_store(f"s3://{BUCKET}", self.settings)
        kept = [bytes(objects.get(one.key)) for one in objects.list("")]
        return b"".join([*kept, *(one.read_bytes() for one in self.files())])

    def files(self) -> list[Path]:
        return sorted(one for one in Path(self.data).rglob("*.log") if one.is_file())

    def state(self) -> tuple[dict[str, str], list[bytes]]:
        return self.server.etags(), [one.read_bytes() for one in self.files()]


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture
def bench(server: S3Server, tmp_path: Path) -> Bench:
    server.clear()
    made = Bench(server, str(tmp_path / "data"))
    made.put("ann", "bob", "cy")
    made.put("ann", "dan", value="w")
    made.put("eve", "ann", is_copied=False, value="x")
    return made


def test_a_person_leaves_the_bucket_with_all_copies(bench: Bench) -> None:
    bench.take()
    bench.put("gil", "ann")
    bench.take()
    bench.move()
    assert b"of ann" in bench.everything()
    result = bench.erase("ann")
    assert b"of ann" not in bench.everything()
    assert {one.tier: one.records for one in result.partitions} == {"hot": 3, "cold": 4}
    assert {key for _, key in bench.rows()} == {b"bob", b"cy", b"dan", b"eve", b"gil"}
    assert {key for _, key in bench.rows(1)} == {b"bob", b"cy", b"dan", b"eve"}
    (stored,) = result.receipt_places
    key = stored.removeprefix(f"s3://{BUCKET}/")
    document = json.loads(open_object_store(f"s3://{BUCKET}", bench.settings).get(key))
    assert document == result.receipt
    assert document["rescan"]["outputs"] == 1
    assert document["topics"][0]["outputs"][0]["rows"] == 2
    assert bench.cli("verify", bench.place).exit_code == 0
    again = bench.take()
    assert (again.is_new, again.document.snapshot) == (False, 2)
    with bench.open() as store:
        assert [one.key for one in store.topic("people").read()].count(b"ann") == 0


def test_an_erasure_that_is_refused_changes_nothing(bench: Bench) -> None:
    before, cluster = bench.state(), bench.cluster()
    cases = [(is_hot, named) for is_hot in (True, False) for named in (None, cluster)]
    for is_hot, named in cases:
        wrong = bench.address(more=WRONG, cluster=named)
        expect_one_line(StoreDenied, partial(bench.erase, "ann", address=wrong, is_hot=is_hot))
    other = bench.address("s3://another/varve", cluster=cluster)
    bench.server.make_bucket("another")
    expect_one_line(InvalidSetting, partial(bench.erase, "ann", address=other))
    tier = Path(bench.data, "varve-tier.json")
    tier.write_text(tier.read_text().replace(BUCKET, "no-such-bucket"))
    for is_hot, named in cases:
        lost = bench.address("s3://no-such-bucket/varve", UNCHECKED, named)
        expect_one_line(BucketNotFound, partial(bench.erase, "ann", address=lost, is_hot=is_hot))
    assert bench.state() == before


def test_a_snapshot_that_is_refused_changes_nothing(bench: Bench) -> None:
    bench.take()
    before = bench.state()
    for error, run in (
        (StoreDenied, lambda: bench.take(address=bench.address(more=WRONG))),
        (StoreDenied, lambda: bench.take(more=WRONG, place=f"s3://{BUCKET}/state/other")),
        (
            BucketNotFound,
            lambda: bench.take(address=bench.address("s3://no-such-bucket/varve", UNCHECKED)),
        ),
        (BucketNotFound, lambda: bench.take(place="s3://no-such-bucket/state", more=UNCHECKED)),
    ):
        expect_one_line(error, run)
        assert bench.state() == before


def test_versions_of_removed_objects_go_too(server: S3Server, tmp_path: Path) -> None:
    server.keep_versions("versioned")
    bench = Bench(server, str(tmp_path / "data"), "versioned")
    bench.put("ann", "bob")
    bench.put("cy")
    bench.take()
    other = leave_version(bench, b"what others removed")
    before = server.read_versions("versioned")
    assert any(b"of ann" in data for data in before.values() if data is not None)
    result = bench.erase("ann")
    after = server.read_versions("versioned")
    assert not any(b"of ann" in data for data in after.values() if data is not None)
    markers = [key for key, data in after.items() if "/segment/" in key[0] and data is None]
    assert [key for key, _ in markers] == [f"varve/{other}"]
    receipt = result.receipt
    assert receipt is not None
    assert {one["key"].rpartition("/")[2] for one in receipt["versions"]} >= {"log", "index"}
    assert receipt["topics"][0]["outputs"][0]["versions"]
    (told,) = [one for one in receipt["out_of_reach"] if "version" in one.lower()]
    assert "keeps 1 older versions" in told
    assert b"what others removed" in after.values()
    assert {key for _, key in bench.rows()} == {b"bob", b"cy"}
    with bench.open() as store:
        assert [one.key for one in store.topic("people").read()] == [b"bob", b"cy"]


def leave_version(bench: Bench, data: bytes) -> str:
    """The key of an object beside the segments that was deleted before."""
    objects = open_object_store(bench.url, bench.settings)
    log = next(one.key for one in objects.list("") if one.key.endswith("/log"))
    other = f"{log.rpartition('/')[0].rpartition('/')[0]}/another/log"
    objects.put(other, data)
    objects.delete([other])
    return other


def expect_one_line(error: type[StoreError], run: Callable[[], object]) -> None:
    with pytest.raises(error) as caught:
        run()
    assert "\n" not in str(caught.value)
    assert "TOPSECRET" not in str(caught.value)
