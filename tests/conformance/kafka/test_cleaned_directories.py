"""Directories that varve cleaned and those that Kafka cleaned are read, checked and cleaned on by
the other side, and a real broker serves them.
"""

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.tools.broker import Broker, read_with_java, write_with_java
from tests.conformance.tools.cleaner import opened_with_kafka
from tests.conformance.tools.cleaning_cases import CASES, Case, draw_turns, live
from tests.conformance.tools.cleaning_pair import (
    PARTITION,
    TOPIC_ID,
    CleaningPair,
    PairSettings,
    check_directory,
    clean_with_varve,
    open_store,
    take_round,
)
from tests.conformance.tools.cleaning_script import Round
from tests.conformance.tools.dump import dump_partition
from tests.conformance.tools.log_script import Append
from tests.conformance.tools.our_consumer import consume
from tests.conformance.tools.shell import JavaShell, records_of
from tests.conformance.tools.stored_batches import read_partition
from tests.conformance.tools.toolchain import Toolchain
from varve.cleaning.key_index.key_index import open_key_index
from varve.cleaning.removals.removal_log import REMOVAL_LOG_FILE
from varve.commit_log import Isolation, Log
from varve.commit_log.directory_files import decode_topic_id
from varve.commit_log.names import APPEND_TIMES_FILE, CLEAN_SHUTDOWN_FILE, KEYS, RECOVERY_POINT_FILE
from varve.disk import RealFileSystem
from varve.records import Record

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

KINDS = ("uncompressed", "mixed codecs", "transactions")
TURN_COUNT = 4


def _consumed(log: Log, isolation: Isolation) -> list[Record]:
    return [one for _, one in consume(log, isolation)]


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("kind", KINDS)
def test_kafka_loads_what_varve_cleaned(
    kafka_log: JavaShell, scratch: Path, kind: str, clean: bool
) -> None:
    pair = CleaningPair(kafka_log, scratch, CASES[kind].settings())
    for _, now_ms in live(pair, CASES[kind], random.Random(kind), TURN_COUNT):
        pair.clean(now_ms)
    assert list(pair.ours.glob(f"*{KEYS}"))
    assert (pair.ours / REMOVAL_LOG_FILE).exists()
    assert (pair.ours / APPEND_TIMES_FILE).exists()
    before = read_partition(pair.ours)
    if not clean:
        for partition in (pair.ours, pair.theirs):
            (partition.parent / CLEAN_SHUTDOWN_FILE).unlink()
            (partition.parent / RECOVERY_POINT_FILE).unlink()

    ours = _load(kafka_log, pair.ours, pair, now_ms)
    theirs = _load(kafka_log, pair.theirs, pair, now_ms)
    assert ours == theirs
    assert ours["records"] == before.records()
    # Recovery lists an aborted transaction only where data of it is left.
    assert pair.differences(same_segments=False) == []
    assert read_partition(pair.ours).files == before.files

    consumed = []
    for partition in (pair.ours, pair.theirs):
        with open_store(partition.parent, pair.settings, now_ms) as store:
            consumed.append(_consumed(store.get(PARTITION), Isolation.READ_COMMITTED))
    assert consumed[0] == consumed[1]
    assert pair.differences(same_segments=False) == []
    assert check_directory(pair.ours.parent, now_ms) == []


def _load(kafka_log: JavaShell, partition: Path, pair: CleaningPair, now_ms: int) -> dict[str, Any]:
    """What Kafka's loader finds in a partition, but for how its segments are cut
    and how well they are compressed.
    """
    directory = str(partition)
    with opened_with_kafka(kafka_log, partition, pair.settings.configs, now_ms=now_ms):
        kafka_log.call("raise_high_watermark", directory=directory, offset=2**62)
        report = kafka_log.call("report", directory=directory)
        answer = kafka_log.call("read", directory=directory, isolation="LOG_END")
    assert sum(one["size"] for one in report["segments"]) == report["size"]
    del report["segments"], report["size"]
    return {**report, "records": records_of(answer)}


def test_kafkas_dump_tool_finds_no_fault_in_what_varve_cleaned(
    toolchain: Toolchain, kafka_log: JavaShell, scratch: Path
) -> None:
    case = CASES["mixed codecs"]
    pair = CleaningPair(kafka_log, scratch, case.settings())
    for _, now_ms in live(pair, case, random.Random("dump"), TURN_COUNT):
        pair.clean_ours(now_ms)
    for option in ("--deep-iteration", "--index-sanity-check"):
        assert dump_partition(toolchain, pair.ours, option).complaints() == []


@pytest.mark.parametrize("kind", KINDS)
def test_both_cleaners_take_turns_on_one_directory(
    kafka_log: JavaShell, scratch: Path, kind: str
) -> None:
    pair = CleaningPair(kafka_log, scratch, CASES[kind].settings())
    stale_count = 0
    for number, now_ms in live(pair, CASES[kind], random.Random(kind), TURN_COUNT):
        pair.clean_theirs(now_ms)
        if number % 2 == 0:
            pair.clean_ours(now_ms)
        else:
            pair.clean_ours_with_kafka(now_ms)
            # Kafka leaves the key indexes of segments it removes; the next open clears them away.
            findings = check_directory(pair.ours.parent, now_ms)
            assert [one for one in findings if not one.path.endswith(KEYS)] == []
            stale_count += _count_stale(pair, now_ms)
        assert pair.differences(same_segments=False) == []
        assert check_directory(pair.ours.parent, now_ms) == []
    assert stale_count > 0
    with open_store(pair.ours.parent, pair.settings, now_ms) as store:
        ours = _consumed(store.get(PARTITION), Isolation.READ_COMMITTED)
    with open_store(pair.theirs.parent, pair.settings, now_ms) as store:
        assert _consumed(store.get(PARTITION), Isolation.READ_COMMITTED) == ours


def _count_stale(pair: CleaningPair, now_ms: int) -> int:
    """Key indexes of a generation that Kafka's cleaner has replaced, none of which is taken."""
    fs = RealFileSystem()
    with open_store(pair.ours.parent, pair.settings, now_ms) as store:
        segments = [
            segment for segment in store.get(PARTITION).view.closed if fs.exists(segment.path(KEYS))
        ]
        return sum(
            open_key_index(fs, segment, topic_id=TOPIC_ID.bytes) is None for segment in segments
        )


def test_broker_serves_what_varve_cleaned(toolchain: Toolchain, scratch: Path) -> None:
    case = CASES["mixed codecs"]
    settings = case.settings(**{"min.cleanable.dirty.ratio": "1.0"})
    chance = random.Random("broker")
    with Broker(toolchain, scratch / "broker") as broker:
        broker.format()
        broker.start()
        with broker.clients() as clients:
            topic = clients.call(
                "create_topic", topic=PARTITION.topic, configs=dict(settings.configs)
            )
        broker.stop()
        directory = broker.data / str(PARTITION)
        shutil.rmtree(directory)

        now_ms = _fill_and_clean(broker.data, case, settings, chance, topic["topic_id"])
        assert list(directory.glob(f"*{KEYS}"))
        ours = _seen_by_us(broker.data, settings, now_ms)

        broker.start()
        with broker.clients() as clients:
            theirs = {one: read_with_java(clients, PARTITION.topic, str(one)) for one in ours}
            assert theirs == ours
            write_with_java(clients, PARTITION.topic)
            theirs = {one: read_with_java(clients, PARTITION.topic, str(one)) for one in ours}
        broker.stop()

        assert _seen_by_us(broker.data, settings, now_ms) == theirs
        assert check_directory(broker.data, now_ms) == []
        clean_with_varve(broker.data, settings, now_ms)
        assert check_directory(broker.data, now_ms) == []


def _fill_and_clean(
    data: Path, case: Case, settings: PairSettings, chance: random.Random, topic_id: str
) -> int:
    for number, turn in enumerate(draw_turns(case, chance, TURN_COUNT)):
        with open_store(data, settings, turn.now_ms) as store:
            if number == 0:
                store.create(PARTITION, decode_topic_id(topic_id))
            take_round(store.get(PARTITION), _in_first_epoch(turn.steps))
        clean_with_varve(data, settings, turn.now_ms)
        now_ms = turn.now_ms
    return now_ms


def _in_first_epoch(steps: Round) -> Round:
    """The broker leads on from the epoch its metadata knows."""
    return [replace(step, leader_epoch=0) if isinstance(step, Append) else step for step in steps]


def _seen_by_us(data: Path, settings: PairSettings, now_ms: int) -> dict[Isolation, list[Record]]:
    with open_store(data, settings, now_ms) as store:
        log = store.get(PARTITION)
        both = (Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED)
        return {isolation: _consumed(log, isolation) for isolation in both}
