"""`varve dump` of a key index: every section, as text and as JSON, and what is wrong with it."""

from functools import partial
from pathlib import Path

import pytest

from tests.support.varve_command import run_varve
from varve.cleaning.key_index.builder import build_key_index
from varve.commit_log import SegmentFiles
from varve.commit_log.segment import Segment
from varve.commit_log.transaction_index import AbortedTransaction
from varve.disk import RealFileSystem
from varve.records import Record, build_batch, end_transaction_marker

NAME = "00000000000000000040"
BATCHES = [
    build_batch([Record(b"a", b"1"), Record(b"b", None)], base_offset=40, delete_horizon_ms=5),
    build_batch([Record(b"a", b"2")], base_offset=42, producer_id=9, transactional=True),
    end_transaction_marker(
        committed=False,
        producer_id=9,
        producer_epoch=2,
        coordinator_epoch=0,
        timestamp=7,
        base_offset=43,
    ),
]


_dump = partial(run_varve, "dump")


@pytest.fixture
def index(tmp_path: Path) -> Path:
    (tmp_path / f"{NAME}.log").write_bytes(b"".join(BATCHES))
    fs = RealFileSystem()
    size = sum(map(len, BATCHES))
    segment = Segment(SegmentFiles(fs), str(tmp_path), base_offset=40, size=size)
    aborted = [AbortedTransaction(9, 42, 43, 42)]
    build_key_index(fs, segment, topic_id=bytes(range(16)), aborted=aborted)
    return tmp_path / f"{NAME}.keys"


def test_text_has_a_line_per_entry_batch_and_mark(index: Path) -> None:
    result = _dump(index)
    lines = result.stdout.splitlines()
    size = sum(map(len, BATCHES))
    assert lines[0] == f"Dumping {index}"
    assert lines[1].startswith("topicId: AAECAwQFBgcICQoLDA0ODw baseOffset: 40 lastOffset: 43 ")
    assert f" logSize: {size} " in lines[1]
    assert lines[1].endswith(
        " entries: 2 batches: 3 marks: 2 records: 4 nullKeys: 0 tombstones: 1 recordBytes: 17"
        " earliestDeleteHorizonMs: 5"
    )
    assert {line.split(" ", 2)[2] for line in lines[2:4]} == {
        "offset: 40 record: 0 size: 9 isTombstone: false",
        "offset: 41 record: 1 size: 8 isTombstone: true",
    }
    assert lines[4:] == [
        "baseOffset: 40 lastOffset: 41 count: 2 position: 0 size: 78 attributes: 64"
        " isAborted: false deleteHorizonMs: 5",
        "baseOffset: 42 lastOffset: 42 count: 1 position: 78 size: 70 attributes: 16"
        " isAborted: true",
        f"baseOffset: 43 lastOffset: 43 count: 1 position: 148 size: {size - 148} attributes: 48"
        " isAborted: false",
        "batch: 1 producerId: 9 producerEpoch: -1",
        "batch: 2 producerId: 9 producerEpoch: 2 control: ABORT",
    ]


def test_json_names_its_objects(index: Path) -> None:
    found = _dump("--json", index).rows
    kinds = [one["type"] for one in found]
    assert kinds == ["file", "keyIndex"] + ["keyEntry"] * 2 + ["keyBatch"] * 3 + ["keyMark"] * 2
    assert len(found[2]["keyHash"]) == 32
    assert [one["isTombstone"] for one in sorted(found[2:4], key=lambda e: e["offset"])] == [
        False,
        True,
    ]
    assert found[-2]["control"] is None


def test_damage_is_named(index: Path) -> None:
    data = bytearray(index.read_bytes())
    data[130] ^= 1
    index.write_bytes(data)
    result = _dump(index, code=1)
    assert "CRC" in result.stderr
    data[9] ^= 1
    index.write_bytes(data)
    assert "header" in _dump(index, code=1).stderr


def test_an_index_of_other_data_is_told_apart(index: Path) -> None:
    index.with_suffix(".log").write_bytes(b"".join(BATCHES[:2]))
    result = _dump("--verify-index-only", index)
    assert result.stdout.splitlines()[1:] == [f"{index} is not of the data file beside it."]


def test_a_sane_index_is_told_so(index: Path) -> None:
    result = _dump("--index-sanity-check", index)
    assert result.stdout.splitlines()[1:] == [f"{index} passed sanity check."]
