"""A run over a table is killed at any file and any commit: the next one has every record once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO

from tests.support.table_bench import TableBench
from varve.foundation.errors import PowerLoss
from varve.jobs.table.definition import TableMode, TableSettings, ValueFormat
from varve.jobs.table.table_state import referenced_paths

SCHEMA = '{"id": "long"}'


class Plan:
    """Counts what reaches the disk, and stops the machine at one of it."""

    def __init__(self, at: int) -> None:
        self._left = at

    def step(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise PowerLoss

    @property
    def has_happened(self) -> bool:
        return self._left <= 0


@contextmanager
def cut_power(plan: Plan, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Before a file is made or removed, and before and after a catalog changes."""

    def before(real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*given: Any, **more: Any) -> Any:
            plan.step()
            return real(*given, **more)

        return act

    def around(real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*given: Any, **more: Any) -> Any:
            plan.step()
            done = real(*given, **more)
            plan.step()
            return done

        return act

    with patch.context() as changed:
        for name in ("new_output", "delete"):
            changed.setattr(PyArrowFileIO, name, before(getattr(PyArrowFileIO, name)))
        for name in ("create_table", "commit_table"):
            changed.setattr(SqlCatalog, name, around(getattr(SqlCatalog, name)))
        yield


def make_settings(mode: TableMode) -> TableSettings:
    buckets = 2 if mode is TableMode.UPSERT else None
    return TableSettings(mode=mode, format=ValueFormat.JSON, schema=SCHEMA, buckets=buckets)


def run(bench: TableBench, name: str, settings: TableSettings, at: int, patch: Any) -> bool:
    """Whether the run was killed."""
    plan = Plan(at)
    try:
        with cut_power(plan, patch):
            bench.sync(settings, name=name)
    except PowerLoss:
        return True
    return plan.has_happened


def check(bench: TableBench, name: str, settings: TableSettings) -> None:
    bench.sync(settings, name=name)
    places = [(0, 0), (0, 2), (0, 3)] if settings.mode is TableMode.APPEND else [(0, 2), (0, 3)]
    assert bench.places(name) == places
    assert [row["_offset"] for row in bench.bad_rows(name)] == [1]
    for table in (name, f"{name}__bad"):
        named = {path.removeprefix("file://") for path in referenced_paths(bench.table(table))}
        assert bench.files(table) == named
        assert bench.marks(table) == []


@pytest.mark.parametrize("mode", list(TableMode))
def test_killed_anywhere_every_record_is_there_once(
    tmp_path: Path, mode: TableMode, monkeypatch: pytest.MonkeyPatch, rounds_factor: int
) -> None:
    bench = TableBench(tmp_path)
    bench.topic.put(("a", '{"id": 1}'), ("b", "oops"), ("a", '{"id": 2}'), ("c", '{"id": 3}'))
    settings = make_settings(mode)
    stride = 1 if rounds_factor > 1 else 8
    start = 1 if mode is TableMode.APPEND else 3
    at, kills = start, 0
    while run(bench, f"shop.t{at}", settings, at, monkeypatch):
        kills += 1
        check(bench, f"shop.t{at}", settings)
        at += stride
    assert kills >= 3
    bench.close()


def test_killed_again_and_again_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = TableBench(tmp_path)
    bench.topic.put(("a", '{"id": 1}'), ("b", "oops"), ("a", '{"id": 2}'), ("c", '{"id": 3}'))
    settings = make_settings(TableMode.UPSERT)
    for at in (12, 17, 19):
        assert run(bench, "shop.t", settings, at, monkeypatch)
    check(bench, "shop.t", settings)
    bench.close()
