"""The example of docs/reference/formats/keys.md is what the builder writes."""

from pathlib import Path

from tests.support.key_model import TOPIC_ID, write_segment
from varve.cleaning.key_index.builder import build_key_index
from varve.commit_log.names import KEYS
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.records import Record, build_batch, end_transaction_marker

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "formats" / "keys.md"
TIME_MS = 1_700_000_000_000


def _example() -> bytes:
    lines = PAGE.read_text(encoding="utf-8").split("```hex\n")[1].split("```")[0].splitlines()
    return b"".join(bytes.fromhex(line.split(";")[0]) for line in lines)


def test_the_example_is_what_the_builder_writes() -> None:
    content = [(b"a", b"1"), (b"b", None), (b"a", b"2")]
    data = build_batch(
        [Record(key, value, timestamp=TIME_MS) for key, value in content],
        base_offset=42,
        producer_id=9,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )
    marker = end_transaction_marker(
        committed=True,
        producer_id=9,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp=TIME_MS,
        base_offset=45,
    )
    fs = MemoryFileSystem(ManualClock())
    segment = write_segment(fs, 42, [data, marker])
    build_key_index(fs, segment, topic_id=TOPIC_ID, aborted=[])
    assert fs.read(segment.path(KEYS)) == _example()
