"""Settings that change while a log is open."""

import dataclasses

import pytest

from tests.support.log_bench import Bench
from varve.foundation.errors import InvalidRecord, RecordTooLarge
from varve.records import Record, build_batch

BATCH = build_batch([Record(key=None, value=bytes(200), timestamp=1)])


def test_other_settings_hold_from_the_next_append_on(bench: Bench) -> None:
    bench.open()
    log = bench.log
    log.append(BATCH)
    log.configure(dataclasses.replace(log.settings, cleanup_policy=("compact",)))
    with pytest.raises(InvalidRecord, match="no key"):
        log.append(BATCH)
    log.configure(dataclasses.replace(log.settings, cleanup_policy=("delete",)))
    assert log.append(BATCH).base_offset == 1
    log.configure(dataclasses.replace(log.settings, max_message_bytes=100))
    with pytest.raises(RecordTooLarge):
        log.append(BATCH)


def test_a_smaller_segment_size_rolls_at_the_next_append(bench: Bench) -> None:
    bench.open()
    log = bench.log
    log.append(BATCH)
    log.configure(dataclasses.replace(log.settings, segment_bytes=len(BATCH)))
    log.append(BATCH)
    assert len(log.view) == 2
