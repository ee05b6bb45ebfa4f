"""Power loss and process end at every I/O step of every operation: G1, G2, G3.

After each: everything acknowledged as durable is there (all of it when only the process ended),
the rest is a prefix of what was appended, offsets are unchanged, opening again finds the same, and
the log takes appends.
"""

import pytest

from tests.crash.bench import ACK, INTERVAL, Bench, Scenario, crash_modes, judge
from tests.support.crash_images import crash_images, named
from varve.commit_log import LogSettings


def _nothing(bench: Bench) -> None:
    return None


def _mixed_appends(bench: Bench) -> None:
    bench.append(2)
    bench.append(producer_id=5, base_sequence=0)
    bench.append(producer_id=6, base_sequence=0, transactional=True)
    bench.append(producer_id=5, base_sequence=2)
    bench.append(producer_id=8, base_sequence=0, transactional=True)
    bench.append(producer_id=6, base_sequence=2, transactional=True)
    bench.end_transaction(6, committed=False)
    bench.append()
    bench.end_transaction(8, committed=True)
    bench.append(producer_id=6, base_sequence=4, transactional=True)


def _filled(bench: Bench) -> None:
    bench.start()
    _mixed_appends(bench)


def _filled_and_flushed(bench: Bench) -> None:
    _filled(bench)
    bench.flush()
    bench.append(2)


def _closed(bench: Bench) -> None:
    _filled(bench)
    bench.close()


def _killed(bench: Bench) -> None:
    _filled_and_flushed(bench)
    bench.kill()


def _append_only(bench: Bench) -> None:
    bench.append(2)


def _roll(bench: Bench) -> None:
    bench.append()
    bench.log.roll()
    bench.append()


def _flush_twice(bench: Bench) -> None:
    bench.flush()
    bench.append()
    bench.flush()


def _truncate_within(bench: Bench) -> None:
    bench.truncate_to(bench.model.end_offset - 1)
    bench.append()


def _truncate_across(bench: Bench) -> None:
    bench.truncate_to(5)
    bench.append(4)


def _truncate_below_log_start(bench: Bench) -> None:
    bench.delete_records(5)
    bench.truncate_to(3)
    bench.append(3)


def _restart_above(bench: Bench) -> None:
    bench.reset_at(100)
    bench.append(2)


def _restart_below(bench: Bench) -> None:
    bench.delete_records(5)
    bench.reset_at(3)
    bench.append(2)


def _delete_records(bench: Bench) -> None:
    bench.delete_records(3)
    bench.delete_records(12)
    bench.append()


def _open_and_append(bench: Bench) -> None:
    bench.open()
    bench.append(2)


def _create(bench: Bench) -> None:
    bench.start()
    bench.append()


PREALLOCATED = LogSettings(segment_bytes=900, index_interval_bytes=200, preallocate=True)

SCENARIOS = {
    "create": (_nothing, _create),
    "append": (_filled, _append_only),
    "first append after a flush": (_filled_and_flushed, _append_only),
    "append many kinds": (lambda bench: bench.start(), _mixed_appends),
    "roll": (_filled, _roll),
    "flush": (_filled, _flush_twice),
    "truncate within a segment": (_filled_and_flushed, _truncate_within),
    "truncate across segments": (_filled_and_flushed, _truncate_across),
    "truncate below the log start": (_filled_and_flushed, _truncate_below_log_start),
    "restart above": (_filled_and_flushed, _restart_above),
    "restart below": (_filled_and_flushed, _restart_below),
    "delete records": (_filled_and_flushed, _delete_records),
    "close": (_filled_and_flushed, lambda bench: bench.close()),
    "open after a clean end": (_closed, _open_and_append),
    "open after a kill": (_killed, _open_and_append),
}


def _crash_everywhere(scenario: Scenario, rounds_factor: int) -> None:
    for image in crash_images(scenario.record(), lambda step: crash_modes(step, rounds_factor)):
        with named(image):
            judge(image.state, image.disk, image.mode)


@pytest.mark.parametrize("name", SCENARIOS)
def test_g1_g2_g3_a_crash_at_any_step_leaves_a_prefix(name: str, rounds_factor: int) -> None:
    _crash_everywhere(Scenario(INTERVAL, *SCENARIOS[name]), rounds_factor)


@pytest.mark.parametrize("name", SCENARIOS)
def test_g1_what_flush_ack_acknowledged_survives_power_loss(name: str, rounds_factor: int) -> None:
    _crash_everywhere(Scenario(ACK, *SCENARIOS[name]), rounds_factor)


@pytest.mark.parametrize("name", ["append many kinds", "roll", "truncate within a segment"])
def test_g1_g2_g3_preallocated_files_make_no_difference(name: str, rounds_factor: int) -> None:
    _crash_everywhere(Scenario(PREALLOCATED, *SCENARIOS[name]), rounds_factor)
