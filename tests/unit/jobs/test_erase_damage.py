"""A damaged log ends an erasure before anything is changed: logs, buckets, tables, snapshots."""

from pathlib import Path
from typing import Any

import pytest

import varve
from varve.foundation.errors import Corrupt
from varve.foundation.settings import GivenValue
from varve.jobs.erase import erasure
from varve.jobs.erase.erasure import erase
from varve.jobs.erase.request import ErasureRequest, FieldMatch, ValueFormat
from varve.jobs.erase.result import ErasureResult
from varve.jobs.snapshot.snapshot import take_snapshot
from varve.jobs.table.catalog import CatalogAddress
from varve.jobs.table.definition import TableMode, TableSettings
from varve.jobs.table.definition import ValueFormat as TableFormat
from varve.jobs.table.sync import sync_table
from varve.jobs.tasks import LocalRunner
from varve.jobs.tier.bucket import Bucket

TABLE = TableSettings(
    mode=TableMode.UPSERT, format=TableFormat.JSON, schema='{"email": "string"}', buckets=2
)
BY_KEY: dict[str, Any] = {"keys": frozenset({b"ann"})}
BY_FIELD: dict[str, Any] = {"field": FieldMatch.of("email", ["ann@x"], ValueFormat.JSON)}
SELECTIONS = pytest.mark.parametrize("selection", [BY_KEY, BY_FIELD], ids=["keys", "field"])
TARGETS = pytest.mark.parametrize("target", ["directory", "bucket", "both"])


class Kit:
    """A store in a directory, also in a bucket unless the target is the directory alone.

    Its outputs are beside them. Every topic has two partitions of two closed segments each; `ann`
    is in the first segments only.
    """

    def __init__(self, root: Path, target: str) -> None:
        self.root, self.target = root, target
        self.data, self.bucket = root / "data", root / "bucket"
        self.bucket.mkdir()
        self.address = None if target == "directory" else Bucket(self.bucket.as_uri())
        self.add_topic("people")

    def open(self) -> varve.Store:
        settings: dict[str, GivenValue] = {}
        if self.address is not None:
            settings["varve.tier.url"] = self.address.url
        return varve.open(str(self.data), settings=settings, maintain=False)

    def add_topic(self, name: str, policy: str = "delete") -> None:
        is_tiered = self.address is not None
        settings: dict[str, GivenValue] = {
            "remote.storage.enable": is_tiered,
            "cleanup.policy": policy,
        }
        with self.open() as store:
            topic = store.create_topic(name, partitions=2, settings=settings)
            for partition in topic.partitions:
                for key in ("ann", "bob"):
                    value = f'{{"email": "{key}@x"}}'
                    topic.append(key=key, value=value, partition=partition.number)
                    partition.log.roll()
                if is_tiered:
                    assert store.tier is not None
                    report = store.tier.copy(partition.log.topic_partition, 1 << 50)
                    assert report.error is None, report.error

    def derive(self) -> None:
        """Makes a table and a snapshot of the topic."""
        address, directories = self.address, [str(self.data)]
        sync_table(
            "people",
            "w.people",
            catalog=CatalogAddress(str(self.root / "tables")),
            address=address,
            directories=directories,
            settings=TABLE,
            runner=LocalRunner(),
        )
        place = str(self.root / "snapshots")
        take_snapshot(
            "people", place, address=address, directories=directories, runner=LocalRunner()
        )

    def damage_last_segment(self, topic: str) -> Path:
        """Flips a bit of the second segment of the second partition; returns its file."""
        if self.address is not None:
            path = sorted(self.bucket.rglob(f"{topic}.*/1/**/log"))[-1]
        else:
            path = self.data / f"{topic}-1" / f"{1:020}.log"
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        return path

    def erase(self, *topics: str, is_dry_run: bool = False, **request: Any) -> ErasureResult:
        return erase(
            ErasureRequest(topics=topics, id="request", **request),
            address=self.address,
            directories=[] if self.target == "bucket" else [str(self.data)],
            runner=LocalRunner(),
            is_dry_run=is_dry_run,
        )

    def files(self) -> dict[str, bytes]:
        """Every file but those that opening a store writes."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() and path.parent != self.data
        }

    def check_unchanged(self, damaged: Path, *topics: str, **request: Any) -> None:
        """A run and a dry run name the damaged file and the position, and change nothing."""
        before = self.files()
        for is_dry_run in (True, False):
            with pytest.raises(Corrupt, match=r"CRC") as error:
                self.erase(*topics, is_dry_run=is_dry_run, **request)
            root = self.data if self.address is None else self.bucket
            assert str(damaged.relative_to(root)) in str(error.value)
            assert "position 0" in str(error.value)
            assert self.files() == before


@SELECTIONS
@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_damaged_later_segment_ends_the_erasure_before_the_first_is_rewritten(
    tmp_path: Path, policy: str, selection: dict[str, Any]
) -> None:
    """Also if the key index of the segment, which compacted topics have, rules the key out."""
    kit = Kit(tmp_path, "directory")
    kit.add_topic("state", policy)
    kit.check_unchanged(kit.damage_last_segment("state"), "state", **selection)


@SELECTIONS
@TARGETS
@pytest.mark.parametrize("first", ["a topic", "outputs"])
def test_damage_ends_the_erasure_before_another_topic_or_an_output_loses_records(
    tmp_path: Path, target: str, selection: dict[str, Any], first: str
) -> None:
    kit = Kit(tmp_path, target)
    topics = ["people"]
    if first == "outputs":
        kit.derive()
    else:
        kit.add_topic("orders")
        topics.append("orders")
    kit.check_unchanged(kit.damage_last_segment(topics[-1]), *topics, **selection)


@TARGETS
def test_topics_are_erased_one_by_one_if_the_hashes_of_their_keys_are_too_many(
    tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasure, "_HASHES_BYTES", 0)
    kit = Kit(tmp_path, target)
    kit.add_topic("orders")
    done = kit.erase("people", "orders", **BY_KEY)
    assert done.receipt is not None
    assert done.records == (8 if target == "both" else 4)
    assert kit.erase("people", "orders", is_dry_run=True, **BY_KEY).records == 0
