"""varve and Kafka agree on which part of a log may be cleaned and how dirty it is."""

import random
from pathlib import Path

import pytest

from tests.conformance.tools.cleaner import KafkaSelection, NothingToClean, select_with_kafka
from tests.conformance.tools.cleaning_cases import DAY_MS, Case, live
from tests.conformance.tools.cleaning_pair import PARTITION, CleaningPair, PairSettings, open_store
from tests.conformance.tools.cleaning_script import Shape
from tests.conformance.tools.shell import JavaShell
from varve.cleaning.compaction.cleanable_log import CleanableLog, find_cleanable

pytestmark = pytest.mark.java

LAGS = {
    "no lag": {},
    "minimal lag of a second": {"min.compaction.lag.ms": "1000"},
    "minimal lag of a day": {"min.compaction.lag.ms": str(DAY_MS)},
    "maximal lag": {"max.compaction.lag.ms": "1500"},
    "both lags": {"min.compaction.lag.ms": "700", "max.compaction.lag.ms": "1500"},
}


@pytest.mark.parametrize("lag", LAGS)
def test_both_find_a_log_equally_dirty(kafka_log: JavaShell, scratch: Path, lag: str) -> None:
    case = Case(shape=Shape(rolls=0.2), configs=LAGS[lag])
    pair = CleaningPair(kafka_log, scratch, case.settings())
    for _, now_ms in live(pair, case, random.Random(lag), 5, append=pair.append_theirs):
        _compare(kafka_log, pair.theirs, pair.settings, now_ms)
        try:
            pair.clean_theirs(now_ms)
        except NothingToClean:
            continue


def _compare(kafka_log: JavaShell, partition: Path, settings: PairSettings, now_ms: int) -> None:
    with open_store(partition.parent, settings, now_ms) as store:
        log = store.get(PARTITION)
        end = log.end_offset
        looks = [
            (checkpoint, now_ms + later_ms)
            for checkpoint in (None, end // 2, end, end + 1)
            for later_ms in (0, 900, 3 * DAY_MS)
        ]
        ours = [_as_kafka(find_cleanable(log, checkpoint, at_ms)) for checkpoint, at_ms in looks]
    theirs = select_with_kafka(kafka_log, partition, looks=looks, configs=settings.configs)
    for look, one, other in zip(looks, ours, theirs, strict=True):
        assert one == other, f"checkpoint and time {look}"


def _as_kafka(ours: CleanableLog) -> KafkaSelection:
    return KafkaSelection(
        first_dirty_offset=ours.first_dirty_offset,
        is_corrected=ours.is_corrected,
        first_uncleanable_offset=ours.first_uncleanable_offset,
        clean_bytes=ours.clean_bytes,
        cleanable_bytes=ours.cleanable_bytes,
        ratio=ours.ratio,
        delay_ms=ours.delay_ms,
    )
