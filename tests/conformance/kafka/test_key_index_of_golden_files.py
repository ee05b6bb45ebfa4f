"""Key indexes of data files a Kafka broker wrote, and its cleaner rewrote, equal the model's."""

from pathlib import Path

import pytest

from tests.support.key_model import TOPIC_ID, check_index, model_of, write_segment
from varve.cleaning.key_index.builder import build_key_index
from varve.cleaning.key_index.key_index import open_key_index
from varve.commit_log.segment_reader import BatchWalk
from varve.commit_log.transaction_index import AbortedTransaction, TransactionIndex
from varve.disk import MemoryFileSystem, RealFileSystem
from varve.foundation.clock import ManualClock

FIXTURES = Path(__file__).parents[2] / "fixtures" / "kafka"
PARTITIONS = sorted({path.parent for path in FIXTURES.glob("*/data/*/*.log")})


def _batches(path: Path) -> list[bytes]:
    """The whole batches of a file, which may end in zeros or torn."""
    with RealFileSystem().open(str(path)) as file:
        return [
            bytes(table.bytes_of(row))
            for table in BatchWalk(file, start=0, end=file.size(), verify_crc=True)
            for row in range(len(table.rows))
        ]


def _aborted(partition: Path) -> list[AbortedTransaction]:
    return [
        aborted
        for path in sorted(partition.glob("*.txnindex"))
        for aborted in TransactionIndex.decode(path.read_bytes(), int(path.stem)).entries()
    ]


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: f"{p.parents[1].name}-{p.name}")
def test_the_index_of_a_golden_file_equals_the_model(partition: Path) -> None:
    aborted = _aborted(partition)
    for path in sorted(partition.glob("*.log")):
        batches = _batches(path)
        fs = MemoryFileSystem(ManualClock())
        segment = write_segment(fs, int(path.stem), batches)
        build_key_index(fs, segment, topic_id=TOPIC_ID, aborted=aborted, buffer_bytes=1 << 12)
        index = open_key_index(fs, segment, topic_id=TOPIC_ID)
        assert index is not None
        check_index(index, model_of(int(path.stem), batches, aborted))


def test_there_are_golden_files_with_aborted_transactions() -> None:
    assert len(PARTITIONS) > 10
    assert any(_aborted(partition) for partition in PARTITIONS)
