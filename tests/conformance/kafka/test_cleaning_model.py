"""The naive model that the property tests hold varve to does what Kafka's cleaner does."""

import random
from pathlib import Path

import pytest

from tests.conformance.tools.cleaner import KafkaCleaning, NothingToClean
from tests.conformance.tools.cleaning_cases import CASES, live, sightings
from tests.conformance.tools.cleaning_pair import PARTITION, CleaningPair, open_store
from tests.conformance.tools.shell import JavaShell
from tests.conformance.tools.stored_batches import StoredPartition, read_partition
from tests.support.cleaning_model import ModelBatch, Run, Shell, check_batches, clean
from varve.commit_log.producer_state import LastRecord

pytestmark = pytest.mark.java

TURN_COUNT = 5
# The model knows no log start offset.
MODELLED = [name for name, case in CASES.items() if not case.raises_log_start]


@pytest.mark.parametrize("name", MODELLED)
def test_kafka_leaves_what_the_model_foretells(
    kafka_log: JavaShell, scratch: Path, name: str
) -> None:
    case = CASES[name]
    pair = CleaningPair(kafka_log, scratch, case.settings())
    seen: set[str] = set()
    begin = case.settings(**{"cleanup.policy": "delete"})
    rounds = live(
        pair, case, random.Random(name), TURN_COUNT, begin=begin, append=pair.append_theirs
    )
    for _, now_ms in rounds:
        with open_store(pair.theirs.parent, pair.settings, now_ms) as store:
            producers = store.get(PARTITION).active_producers()
        before = read_partition(pair.theirs)
        try:
            done = pair.clean_theirs(now_ms)
        except NothingToClean:
            continue
        after = read_partition(pair.theirs)
        retention_ms = pair.settings.for_varve().delete_retention_ms
        run = _run_over(before, producers, done, now_ms, retention_ms)
        _check(run, before, after)
        seen |= sightings(before, after)
    assert seen >= set(case.expected)


def _run_over(
    before: StoredPartition,
    producers: dict[int, LastRecord],
    done: KafkaCleaning,
    now_ms: int,
    delete_retention_ms: int,
) -> Run:
    return Run(
        batches=[
            ModelBatch.of(batch.bytes)
            for offset, batch in before.batches.items()
            if offset < done.first_uncleanable_offset
        ],
        aborted=before.all_aborted(),
        producers={id: Shell(one.epoch, one.last_data_offset) for id, one in producers.items()},
        first_uncleanable_offset=done.first_uncleanable_offset,
        now_ms=now_ms,
        delete_retention_ms=delete_retention_ms,
    )


def _check(run: Run, before: StoredPartition, after: StoredPartition) -> None:
    outcome = clean(run)
    untouched = [
        ModelBatch.of(batch.bytes)
        for offset, batch in before.batches.items()
        if offset >= run.first_uncleanable_offset
    ]
    found = [ModelBatch.of(batch.bytes) for batch in after.batches.values()]
    check_batches(found, outcome.batches + untouched)
    assert after.all_aborted() == outcome.aborted
