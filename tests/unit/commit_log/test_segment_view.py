"""The segments of a log at one moment."""

from tests.support.log_bench import Bench


def bases(bench: Bench, offset: int) -> list[int]:
    return [segment.base_offset for segment in bench.log.view.from_offset(offset)]


def test_a_view_leads_from_the_segment_that_would_hold_an_offset(bench: Bench) -> None:
    bench.open()
    bench.log.reset_at(10)
    bench.fill(2, 3, 4)
    assert len(bench.log.view) == 3
    expected = {0: [10, 12, 15], 10: [10, 12, 15], 11: [10, 12, 15], 12: [12, 15], 14: [12, 15]}
    expected |= {15: [15], 18: [15], 99: [15]}
    assert {offset: bases(bench, offset) for offset in expected} == expected


def test_a_view_is_not_changed_by_a_roll(bench: Bench) -> None:
    bench.open()
    bench.fill(1)
    view = bench.log.view
    bench.log.roll()
    assert [segment.base_offset for segment in view] == [0]
    assert [segment.base_offset for segment in bench.log.view] == [0, 1]
    assert bench.log.view.first_base_offset == 0
