"""An erased record is nowhere below the directories of its store, or the receipt names the place.

The hunt runs the features that write data of records, erases a person, and searches every byte.

Carries G8.
"""

import base64
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types
import pytest
from rocksdict import AccessType, Options, Rdict

import varve
from tests.support.shape_engine import wait_until
from tests.support.varve_command import run_varve
from varve import shapes
from varve.broker.dedup.partition import PartitionDedup
from varve.broker.dedup.state import DedupEnvironment
from varve.commit_log.directory_files import encode_topic_id
from varve.commit_log.settings import LAST_ERASURE
from varve.dedup import Deduplicator
from varve.dedup.directories import state_root
from varve.dedup.rules import DedupRules, parse_id_source
from varve.disk import RealFileSystem
from varve.embedded import Store
from varve.foundation.clock import SystemClock
from varve.jobs.derived_outputs import register_files
from varve.jobs.erase.erasure import erase, new_erasure_id
from varve.jobs.erase.request import ErasureRequest, FieldMatch, ValueFormat
from varve.jobs.erase.result import ErasureResult
from varve.jobs.snapshot.snapshot import take_snapshot
from varve.jobs.source.options import SourceOptions
from varve.jobs.table.catalog import CatalogAddress
from varve.jobs.table.definition import TableMode, TableSettings
from varve.jobs.table.definition import ValueFormat as TableFormat
from varve.jobs.table.sync import sync_table
from varve.jobs.tasks import LocalRunner
from varve.jobs.tier.bucket import Bucket
from varve.kafka_client.address import parse_cluster_address
from varve.testing import KafkaKit
from varve.topics import KafkaCluster
from varve.topics.outputs import (
    HERE,
    DerivedOutput,
    LocalOutputRegistry,
    OutputKind,
    TopicOutputRegistry,
    find_path,
)

SECRET = "zz-ann-0815"
"""Sixteen bytes at most: an id that is stored as it is."""
LONG = "zz-ann-with-a-long-key-0815"
MAIL = "zz-ann@example.com"
WINDOW_MS = 10**9


class Bench:
    """A store with a person in it, and what every feature derives from her records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data, self.shapes = str(path / "data"), str(path / "shapes")
        self.bucket = Bucket(f"file:{path}/bucket")
        self.warehouse = str(path / "warehouse")

    def open(self) -> Store:
        return varve.open(self.data, settings={"varve.tier.url": self.bucket.url}, maintain=False)

    def fill(self) -> None:
        with self.open() as store:
            topic = store.create_topic(
                "people",
                settings={"cleanup.policy": "compact", "remote.storage.enable": True},
            )
            for key in (SECRET, "bob", LONG, "cy"):
                mail = MAIL if key in (SECRET, LONG) else f"{key}@example.com"
                topic.append(key=key.encode(), value=f'{{"id":"{key}","mail":"{mail}"}}'.encode())
            topic.partition(0).log.roll()
            assert store.tier is not None
            store.tier.copy(topic.partition(0).log.topic_partition, 1 << 50)
            topic.append(key=SECRET.encode(), value=f'{{"id":"1","mail":"{MAIL}"}}'.encode())

    def deduplicate(self, by: str, name: str) -> None:
        with (
            self.open() as store,
            Deduplicator.open(store, "people", name, rules_by(by)) as dedup,
        ):
            dedup.run_once()

    def serve_ids(self) -> None:
        """The ids of a topic with `varve.dedup.by`, as a server keeps them."""
        environment = DedupEnvironment(
            file_system=RealFileSystem(), clock=SystemClock(), random=random.Random(1), boot_id="b"
        )
        with self.open() as store:
            topic = store.topic("people")
            directory = f"{state_root(self.data)}/{topic.id}-0"
            dedup = PartitionDedup(topic.partition(0).log, rules_by("key"), directory, environment)
            dedup.open()
            dedup.close()

    def shape_rows(self, where: str | None = None) -> bytes:
        """What a client of a shape reads first; its server continues in the directory."""
        with self.open() as store, shapes.open(self.shapes, cluster=store) as engine:
            definition = shapes.define("people", where=where)
            engine.find_or_create(definition)
            # A shape of an earlier run is served until its topic is read.
            wait_until(lambda: engine.is_caught_up("people"))
            shape = engine.find_or_create(definition)
            wait_until(lambda: shape.is_snapshot_complete)
            offset, rows = shapes.BEFORE_ALL, b""
            while offset < shape.latest or offset == shapes.BEFORE_ALL:
                end = shape.chunk_end(offset) or shape.latest
                rows += b"".join(shape.read(offset, end))
                offset = end
            return rows

    def derive(self) -> None:
        """Runs every feature that derives data from a topic without a Spark session."""
        self.deduplicate("key", "people-once")
        self.deduplicate("field:mail", "people-by-mail")
        self.serve_ids()
        assert SECRET.encode() in self.shape_rows()
        assert MAIL.encode() in self.shape_rows(f"mail = '{MAIL}'")
        given: dict[str, Any] = {
            "runner": LocalRunner(),
            "directories": [self.data],
            "address": self.bucket,
        }
        take_snapshot("people", str(self.path / "snapshots"), **given)
        sync_table(
            "people",
            "shop.people",
            catalog=CatalogAddress(self.warehouse),
            settings=TableSettings(mode=TableMode.UPSERT, format=TableFormat.JSON),
            **given,
        )
        answer = self.path / "answer.json"
        source = SourceOptions(topic="people", directories=(self.data,), address=self.bucket)
        register_files(source, str(answer), format="json", clock=SystemClock())
        answer.write_text(f'{{"key":"{SECRET}"}}')

    def leave(self) -> None:
        """Leaves what killed programs leave: batches of a sink, a deleted partition, a repair."""
        deleted = f"data/people-7.{'0' * 32}-delete"
        for folder in ("data.staging/sink", deleted, "varve-quarantine/people-0"):
            (self.path / folder).mkdir(parents=True)
            (self.path / folder / "file").write_text(SECRET)
        (self.path / "data/people-0/00000000000000000000.log.deleted").write_text(SECRET)

    def erase(self, *keys: str, field: FieldMatch | None = None) -> ErasureResult:
        request = ErasureRequest(
            topics=("people",),
            id=new_erasure_id(),
            keys=frozenset(key.encode() for key in keys),
            field=field,
        )
        return erase(request, runner=LocalRunner(), address=self.bucket, directories=[self.data])

    def outputs(self) -> list[OutputKind]:
        with self.open() as store:
            topic_id = store.topic("people").id
        assert topic_id is not None
        registry = LocalOutputRegistry(self.data)
        return [output.kind for output in registry.find("people", encode_topic_id(topic_id))]

    def find(self, *secrets: str) -> set[str]:
        """The files that hold one of the secrets."""
        return {
            str(path.relative_to(self.path))
            for path in sorted(self.path.rglob("*"))
            if path.is_file()
            for content in _contents(path)
            if any(form in content for secret in secrets for form in _forms(secret.encode()))
        }


def rules_by(text: str) -> DedupRules:
    return DedupRules(
        by=parse_id_source(text), before_ms=WINDOW_MS, after_ms=WINDOW_MS, lateness_ms=WINDOW_MS
    )


def _place(name: str) -> str:
    """What a receipt names of a file: its folder, within a log directory that of the partition."""
    first, _, rest = name.partition("/")
    return rest.partition("/")[0] if first == "data" else first


def _forms(secret: bytes) -> Iterator[bytes]:
    """The secret in the encodings in which data of records is written."""
    yield secret
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    yield base64.b64encode(secret)[:-4]
    yield secret.decode().encode("utf-16-le")


def _contents(path: Path) -> Iterator[bytes]:
    """The bytes of a file, and what is compressed in it."""
    yield path.read_bytes()
    if path.suffix == ".parquet":
        yield repr(pq.read_table(path).to_pylist()).encode()
    if path.name == "CURRENT":
        database = Rdict(
            str(path.parent), Options(raw_mode=True), access_type=AccessType.read_only()
        )
        yield b"".join(key + value for key, value in database.items())
        database.close()


@pytest.fixture(scope="module")
def derived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with everything that is derived, and a copy of it beside it."""
    path = tmp_path_factory.mktemp("erase") / "all"
    path.mkdir()
    made = Bench(path)
    made.fill()
    made.derive()
    shutil.copytree(path, f"{path}.copy")
    return path


@pytest.fixture
def bench(derived: Path) -> Bench:
    """Outputs are registered by their paths, so every test has the same directory."""
    shutil.rmtree(derived)
    shutil.copytree(f"{derived}.copy", derived)
    return Bench(derived)


def test_an_erased_person_is_found_nowhere_else_than_the_receipt_says(bench: Bench) -> None:
    before = bench.find(SECRET, LONG, MAIL)
    for folder in ("data/people-0", "data/people-once-0", "data/people-once-dedup-changelog-0"):
        assert any(name.startswith(folder) for name in before), folder
    for folder in ("data.dedup/", "shapes/", "snapshots/", "warehouse/", "bucket/"):
        assert any(name.startswith(folder) for name in before), folder
    bench.leave()
    receipt = bench.erase(SECRET, LONG).receipt
    assert receipt is not None
    said = "\n".join(receipt["out_of_reach"])
    left = {_place(name) for name in bench.find(SECRET, LONG, MAIL)}
    assert left == {
        "answer.json",
        f"people-7.{'0' * 32}-delete",
        "data.staging",
        "varve-quarantine",
    }
    assert {place for place in left if place not in said} == set()
    assert "Cache-Control" in said


def test_an_erased_field_is_found_nowhere_else_than_the_receipt_says(bench: Bench) -> None:
    receipt = bench.erase(field=FieldMatch.of("mail", [MAIL], ValueFormat.JSON)).receipt
    assert receipt is not None
    assert bench.find(SECRET, LONG, MAIL) == {"answer.json"}


def test_shapes_from_before_and_after_an_erasure_serve_no_erased_row(bench: Bench) -> None:
    bench.erase(SECRET, LONG)
    rows = bench.shape_rows()
    assert b'"bob"' in rows
    assert SECRET.encode() not in rows
    assert MAIL.encode() not in bench.shape_rows(f"mail = '{MAIL}'")
    assert MAIL.encode() not in bench.shape_rows("id <> 'other'")


def test_deduplications_remember_the_other_ids_after_an_erasure(bench: Bench) -> None:
    bench.erase(SECRET, LONG)
    with bench.open() as store:
        for key in ("bob", SECRET):
            store.topic("people").append(key=key.encode(), value=b'{"mail":"new"}')
    bench.deduplicate("key", "people-once")
    with bench.open() as store:
        keys = [record.key for record in store.topic("people-once").read()]
    assert sorted(key for key in keys if key) == [b"bob", b"cy", SECRET.encode()]


def test_every_output_is_registered(bench: Bench) -> None:
    """Snapshots, tables and files of a tiered topic are registered in the bucket."""
    assert sorted(set(bench.outputs())) == [OutputKind.IDS, OutputKind.SHAPES, OutputKind.TOPIC]


def test_an_erasure_is_shown_to_those_who_read_the_topic(bench: Bench) -> None:
    result = bench.erase(SECRET)
    with bench.open() as store:
        assert store.topic("people").settings.varve_erasure_last.startswith(result.id)
        assert LAST_ERASURE in store.given_settings("people-once")


# What another process or machine keeps


def test_shapes_and_ids_in_use_are_out_of_reach_by_name(bench: Bench) -> None:
    fs = RealFileSystem()
    ids = f"{state_root(bench.data)}/people-once/0/.lock"
    with fs.lock(f"{bench.shapes}/.lock"), fs.lock(ids):
        receipt = bench.erase(SECRET, LONG).receipt
    assert receipt is not None
    said = "\n".join(receipt["out_of_reach"])
    assert f"shapes of people in {bench.shapes}, which another process has open" in said
    assert f"ids of the deduplication people-once in {state_root(bench.data)}/people-once" in said
    left = {name.partition("/")[0] for name in bench.find(SECRET, LONG, MAIL)}
    assert left == {"shapes", "data.dedup", "answer.json"}
    assert SECRET.encode() not in bench.shape_rows(), "the next start of its server drops them"
    bench.deduplicate("key", "people-once")
    with bench.open() as store, shapes.open(bench.shapes, cluster=store) as engine:
        engine.run_maintenance()
    assert bench.find(SECRET, LONG, MAIL) == {"answer.json"}


def test_a_missing_directory_is_out_of_reach_by_name(bench: Bench) -> None:
    Path(bench.shapes).rename(bench.path / "elsewhere")
    said = "\n".join(bench.erase(SECRET).out_of_reach)
    assert f"shapes of people in {bench.shapes}: the directory is not there" in said
    assert "varve output forget people shapes-" in said


def test_a_restored_directory_is_named_until_it_is_erased_too(bench: Bench) -> None:
    copy = str(bench.path / "copy")
    run_varve("tier", "restore", "people", "--dir", copy, "--store", bench.bucket.url)
    assert any(name.startswith("copy/") for name in bench.find(SECRET))
    said = "\n".join(bench.erase(SECRET, LONG).out_of_reach)
    assert f"{copy} was restored from the remote tier of people: erase there with --dir" in said
    bench.data = copy
    assert "was restored" not in "\n".join(bench.erase(SECRET, LONG).out_of_reach)
    assert bench.find(SECRET, LONG, MAIL) == {"answer.json"}


def test_what_is_derived_through_a_server_is_registered_in_its_store() -> None:
    with KafkaKit() as kit:
        address = parse_cluster_address({"bootstrap.servers": kit.bootstrap})
        assert address is not None
        cluster = KafkaCluster(address)
        topic = cluster.find_or_create("people", settings={})
        output = DerivedOutput(
            kind=OutputKind.SHAPES,
            topic="people",
            topic_id=topic.id_text,
            place="/srv/shapes",
            name="people",
        )
        for given in (output, replace(output, kind=OutputKind.TOPIC, place=HERE)):
            cluster.register_output(given)
            cluster.register_output(given)
        cluster.close()
        registry = TopicOutputRegistry(kit.store)
        shapes_output, topic_output = registry.find("people", topic.id_text)
        assert find_path(shapes_output.place) == "/srv/shapes"
        assert find_path(shapes_output.place.replace("file://", "file://other-")) is None
        assert topic_output.place == kit.store.directories[0].path
        for known in (shapes_output, topic_output):
            registry.forget(known)
        assert registry.find("people", topic.id_text) == []
