"""Declared metrics: names that Prometheus likes, values by label, the text it reads."""

import pytest
from prometheus_client import CollectorRegistry

from varve.foundation.metrics import MetricTable, counter, exposition, gauge

BYTES = gauge("varve_disk_bytes", "How many.", unit="bytes", labels=("path",))
ERRORS = counter("varve_errors_total", "How often.", unit="errors")
DEPTH = gauge("varve_depth", "How deep.", unit="metres")


def _table() -> MetricTable:
    return MetricTable([BYTES, ERRORS, DEPTH])


@pytest.mark.parametrize("name", ["depth", "varve", "varve_Depth", "varve_depth-x", "varve__x"])
def test_a_name_begins_with_varve_and_has_small_letters(name: str) -> None:
    with pytest.raises(ValueError, match="not named varve_"):
        gauge(name, "", unit="")


def test_only_counters_end_with_total() -> None:
    with pytest.raises(ValueError, match="_total"):
        counter("varve_errors", "", unit="")
    with pytest.raises(ValueError, match="_total"):
        gauge("varve_errors_total", "", unit="")


def test_values_are_kept_by_label() -> None:
    table = _table()
    table.set(BYTES, 5, "/a")
    table.set(BYTES, 7, "/b")
    table.set(BYTES, 6, "/a")
    table.add(ERRORS, 2)
    table.add(ERRORS, 1)
    assert [table.value(BYTES, path) for path in ("/a", "/b", "/c")] == [6, 7, 0]
    assert table.value(ERRORS) == 3


def test_a_counter_is_raised_to_a_sum_that_was_counted_elsewhere_and_never_falls() -> None:
    table = _table()
    for total in (3, 5, 4):
        table.raise_to(ERRORS, total)
    assert table.value(ERRORS) == 5


def test_replaced_values_forget_those_not_named() -> None:
    table = _table()
    table.set(BYTES, 5, "/gone")
    table.replace(BYTES, {("/new",): 1.0})
    assert 'path="/gone"' not in exposition(table)
    assert 'varve_disk_bytes{path="/new"} 1.0\n' in exposition(table)


def test_a_value_with_the_wrong_labels_or_a_falling_counter_is_our_mistake() -> None:
    table = _table()
    with pytest.raises(AssertionError, match="labels"):
        table.set(BYTES, 1)
    with pytest.raises(AssertionError, match="cannot fall"):
        table.add(ERRORS, -1)


def test_the_text_has_help_type_and_value_and_no_clock_of_its_own() -> None:
    table = _table()
    table.set(BYTES, 5, 'a "b"\\')
    assert exposition(table) == (
        "# HELP varve_disk_bytes How many.\n"
        "# TYPE varve_disk_bytes gauge\n"
        'varve_disk_bytes{path="a \\"b\\"\\\\"} 5.0\n'
        "# HELP varve_errors_total How often.\n"
        "# TYPE varve_errors_total counter\n"
        "varve_errors_total 0.0\n"
        "# HELP varve_depth How deep.\n"
        "# TYPE varve_depth gauge\n"
        "varve_depth 0.0\n"
    )


def test_a_table_joins_a_registry_of_the_callers() -> None:
    registry = CollectorRegistry()
    table = _table()
    registry.register(table)
    table.set(DEPTH, 3)
    assert registry.get_sample_value("varve_depth") == 3
