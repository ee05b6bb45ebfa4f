"""Apache Kafka's log loader opens what varve wrote, closed or killed, and reads every record."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conformance.tools.dump import dump_partition
from tests.conformance.tools.our_consumer import consume
from tests.conformance.tools.our_log import open_ours
from tests.conformance.tools.recovery import open_log
from tests.conformance.tools.shell import JavaShell, records_of
from tests.conformance.tools.toolchain import Toolchain
from varve.cli.dump.records import TIMESTAMP_TYPE_NAMES
from varve.commit_log import Isolation, Log
from varve.foundation.clock import SystemClock
from varve.records import Codec, Record, build_batch

pytestmark = pytest.mark.java

SMALL = {"internal.segment.bytes": "20000", "index.interval.bytes": "500"}
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "log append time": {**SMALL, "message.timestamp.type": "LogAppendTime"},
    "recompressed with gzip": {**SMALL, "compression.type": "gzip"},
    "recompressed with snappy": {**SMALL, "compression.type": "snappy"},
    "recompressed with lz4": {**SMALL, "compression.type": "lz4"},
    "recompressed with zstd": {**SMALL, "compression.type": "zstd"},
    "uncompressed": {**SMALL, "compression.type": "uncompressed"},
    "preallocated": {**SMALL, "preallocate": "true"},
    "large": {"max.message.bytes": "5000000"},
}


def _fill(log: Log, now_ms: int, *, size: int) -> None:
    for turn in range(40):
        records = [
            Record(
                b"key %d" % (number % 5),
                (b"value %d " % number * size)[: size * 8],
                (("turn", b"%d" % turn),) if number % 3 else (),
                now_ms - turn + number,
            )
            for number in range(1 + turn % 20)
        ]
        log.append(build_batch(records, codec=Codec(turn % len(Codec))), leader_epoch=turn // 10)


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("name", SETTINGS)
def test_kafka_reads_every_record(
    toolchain: Toolchain, kafka_log: JavaShell, tmp_path: Path, name: str, clean: bool
) -> None:
    directory = tmp_path / "topic-0"
    directory.mkdir()
    now_ms = SystemClock().now_ms()
    log = open_ours(
        directory,
        clean=True,
        recovery_point=0,
        log_start_offset=0,
        configs=SETTINGS[name],
        now_ms=now_ms,
    )
    _fill(log, now_ms, size=2_000 if name == "large" else 5)
    expected = [
        (
            one,
            TIMESTAMP_TYPE_NAMES[batch.header.timestamp_type],
            batch.header.partition_leader_epoch,
        )
        for batch, one in consume(log, Isolation.READ_UNCOMMITTED)
    ]
    end_offset = log.end_offset
    if clean:
        log.close()
        dump = dump_partition(toolchain, directory, "--deep-iteration")
        assert dump.complaints() == []
    else:
        log.abandon()
    report = open_log(
        kafka_log,
        directory,
        clean=clean,
        recovery_point=end_offset if clean else 0,
        configs=SETTINGS[name],
    )
    assert (report["log_start_offset"], report["log_end_offset"]) == (0, end_offset)
    assert [epoch for epoch, _ in report["leader_epochs"]] == [0, 1, 2, 3]
    answer = kafka_log.call("read", directory=str(directory), isolation="LOG_END")
    kafka_log.call("close", directory=str(directory))
    seen = [
        (one, row["timestamp_type"], row["leader_epoch"])
        for one, row in zip(records_of(answer), answer["records"], strict=True)
    ]
    assert seen == expected
