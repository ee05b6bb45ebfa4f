"""A varve log and a Kafka log that take the same steps answer alike and leave equal files."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conformance.tools.dump import dump_partition
from tests.conformance.tools.log_pair import LogPair
from tests.conformance.tools.log_script import LogScript
from tests.conformance.tools.shell import JavaShell
from tests.conformance.tools.toolchain import Toolchain
from varve.foundation.clock import SystemClock

pytestmark = pytest.mark.java

STEP_COUNT = 250
DUMP_OPTIONS = ("--print-data-log", "--index-sanity-check", "--verify-index-only")
CONFIGS = {
    "segment.index.bytes": "400",
    "index.interval.bytes": "200",
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "file.delete.delay.ms": "0",
}
# Kafka's recovery gives up on a segment that would need more index entries than fit.
FULL_INDEX = "full index"
SHAPES = {
    "small segments": {"internal.segment.bytes": "1500"},
    FULL_INDEX: {"internal.segment.bytes": "100000", "index.interval.bytes": "0"},
    "recompressed": {"internal.segment.bytes": "3000", "compression.type": "uncompressed"},
    "compacted": {"internal.segment.bytes": "3000", "cleanup.policy": "compact,delete"},
    "small batches": {"internal.segment.bytes": "1500", "max.message.bytes": "180"},
    "preallocated": {"internal.segment.bytes": "2000", "preallocate": "true"},
    "defaults": {"segment.index.bytes": "10485760", "index.interval.bytes": "4096"},
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES)
def test_both_logs_stay_the_same(
    toolchain: Toolchain, kafka_log: JavaShell, tmp_path: Path, shape: str, seed: int
) -> None:
    pair = _pair(kafka_log, tmp_path, shape)
    chance = random.Random(f"{shape} {seed}")
    _live(pair, LogScript(chance, SystemClock().now_ms(), may_be_killed=shape != FULL_INDEX))
    for option in DUMP_OPTIONS if seed == 0 else DUMP_OPTIONS[:1]:
        assert dump_partition(toolchain, pair.ours, option).complaints() == []


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shape", SHAPES)
def test_both_logs_stay_the_same_as_followers(
    toolchain: Toolchain, kafka_log: JavaShell, tmp_path: Path, shape: str, seed: int
) -> None:
    pair = _pair(kafka_log, tmp_path, shape)
    chance = random.Random(f"follower {shape} {seed}")
    script = LogScript(
        chance,
        SystemClock().now_ms(),
        follower_batches_max=1,
        may_be_killed=shape != FULL_INDEX,
    )
    _live(pair, script)
    assert dump_partition(toolchain, pair.ours, "--print-data-log").complaints() == []


@pytest.mark.parametrize("shape", ["small segments", "preallocated", "defaults"])
def test_both_logs_hold_the_same_data_when_followers_get_several_batches_at_once(
    toolchain: Toolchain, kafka_log: JavaShell, tmp_path: Path, shape: str
) -> None:
    # Kafka 4.1.2 makes index entries batch by batch, varve one for all of them.
    pair = _pair(kafka_log, tmp_path, shape, ignored_suffixes=[".index", ".timeindex"])
    chance = random.Random(f"several {shape}")
    _live(pair, LogScript(chance, SystemClock().now_ms(), follower_batches_max=4))
    assert dump_partition(toolchain, pair.ours, suffixes=[".log"]).complaints() == []


def _pair(
    kafka_log: JavaShell, home: Path, shape: str, ignored_suffixes: Sequence[str] = ()
) -> LogPair:
    return LogPair(
        kafka_log,
        home,
        configs={**CONFIGS, **SHAPES[shape]},
        now_ms=SystemClock().now_ms(),
        ignored_suffixes=ignored_suffixes,
    )


def _live(pair: LogPair, script: LogScript) -> None:
    """Takes the steps of a script on both sides and closes them."""
    for _ in range(STEP_COUNT):
        step = script.next_step(
            log_start_offset=pair.log_start_offset, log_end_offset=pair.log_end_offset
        )
        pair.take(step)
    pair.close()
