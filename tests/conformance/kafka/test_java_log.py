"""A varve log and a Kafka log that take the same steps answer alike and leave equal files."""

import random
from pathlib import Path

import pytest

from conformance.dump import dump_partition
from conformance.log_pair import LogPair
from conformance.log_script import LogScript
from conformance.shell import JavaShell
from conformance.toolchain import Toolchain
from varve.foundation.clock import SystemClock

pytestmark = pytest.mark.java

STEP_COUNT = 250
CONFIGS = {
    "segment.index.bytes": "400",
    "index.interval.bytes": "200",
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "file.delete.delay.ms": "0",
}
SHAPES = {
    "small segments": {"internal.segment.bytes": "1500"},
    "index full": {"internal.segment.bytes": "100000", "index.interval.bytes": "0"},
    "recompressed": {"internal.segment.bytes": "3000", "compression.type": "uncompressed"},
    "compacted": {"internal.segment.bytes": "3000", "cleanup.policy": "compact,delete"},
    "small batches": {"internal.segment.bytes": "1500", "max.message.bytes": "180"},
    "preallocated": {"internal.segment.bytes": "2000", "preallocate": "true"},
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shape", SHAPES)
def test_both_logs_stay_the_same(
    toolchain: Toolchain, kafka_log: JavaShell, tmp_path: Path, shape: str, seed: int
) -> None:
    now_ms = SystemClock().now_ms()
    pair = LogPair(kafka_log, tmp_path, configs={**CONFIGS, **SHAPES[shape]}, now_ms=now_ms)
    script = LogScript(random.Random(f"{shape} {seed}"), now_ms)
    for _ in range(STEP_COUNT):
        step = script.next_step(
            log_start_offset=pair.log_start_offset, log_end_offset=pair.log_end_offset
        )
        pair.take(step)
    pair.close()
    dump = dump_partition(toolchain, pair.ours, "--print-data-log", "--index-sanity-check")
    assert dump.complaints() == []
