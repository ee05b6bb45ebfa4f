"""Changes of a topic into many shapes, each of which they concern seldom, or all."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count as counting

from benchmarks.measure import Contest, Scale, Ticker
from benchmarks.shapes.engines import (
    ROW_COUNT,
    Place,
    catch_up,
    create_shapes,
    make_rows,
    open_engine,
    open_place,
)
from benchmarks.sizes import SizeUnit
from benchmarks.workspace import Workspace
from varve.shapes.engine import ShapeEngine

_CHANGES = 30_000
_QUICK_CHANGES = 20_000
_SHAPE_BYTES = 64 << 10
_CHANGE_BYTES = 2_000
_REPEAT_COUNT_MAX = 3


class ShapesMeasure:
    """Size: shapes over the topic, each of one tenant's rows."""

    name = "shapes"
    title = "changes a second with many shapes over one topic, against one shape"
    size_unit = SizeUnit.COUNT

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (100, 1_000) if quick else (1, 100, 10_000)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        count, ticker = _change_count(scale), scale.ticker
        workspace.require(size * _SHAPE_BYTES + count * _CHANGE_BYTES)
        filters = [f"tenant = 't{number}'" for number in range(size)]
        with _many_and_one(workspace, filters) as (many, one):
            yield [
                Contest(
                    self.name,
                    "changes/s",
                    lambda: many.changes_per_second(count, ticker),
                    lambda: one.changes_per_second(count, ticker),
                    None,
                    f"{count:,} updates of {ROW_COUNT:,} rows; each concerns one shape by its "
                    "tenant; read from the topic, filtered, appended, durable at the end",
                    repeat_count_max=_REPEAT_COUNT_MAX,
                )
            ]


class FanOutMeasure:
    """Size: shapes that every change concerns."""

    name = "fan_out"
    title = "entries a second when every change concerns every shape, against one shape"
    size_unit = SizeUnit.COUNT

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (10, 100)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        count, ticker = _change_count(scale) // size, scale.ticker
        workspace.require(count * size * _CHANGE_BYTES)
        filters = [f"n >= -{number + 1}" for number in range(size)]
        with _many_and_one(workspace, filters) as (many, one):
            yield [
                Contest(
                    self.name,
                    "entries/s",
                    lambda: size * many.changes_per_second(count, ticker),
                    lambda: one.changes_per_second(count * size, ticker),
                    None,
                    f"{count:,} updates into each of {size} shapes, filters of a range",
                    repeat_count_max=_REPEAT_COUNT_MAX,
                )
            ]


def _change_count(scale: Scale) -> int:
    return _QUICK_CHANGES if scale.is_quick else _CHANGES


@contextmanager
def _many_and_one(
    workspace: Workspace, filters: Sequence[str]
) -> "Iterator[tuple[_Feeding, _Feeding]]":
    """Shapes with these filters, and beside them one without, both of as many tenants."""
    with (
        _Feeding.open(workspace, filters, tenant_count=len(filters)) as many,
        _Feeding.open(workspace, [None], tenant_count=len(filters)) as one,
    ):
        yield many, one


class _Feeding:
    """An engine that takes more and more changes."""

    def __init__(self, place: Place, engine: ShapeEngine, tenant_count: int) -> None:
        self._place = place
        self._engine = engine
        self._tenant_count = tenant_count
        self._rounds = counting(1)

    @classmethod
    @contextmanager
    def open(
        cls, workspace: Workspace, filters: Sequence[str | None], *, tenant_count: int
    ) -> "Iterator[_Feeding]":
        with (
            workspace.directory("shapes") as directory,
            open_place(directory, tenant_count) as place,
            open_engine(place) as engine,
        ):
            create_shapes(place, engine, filters)
            yield cls(place, engine, tenant_count)

    def changes_per_second(self, count: int, ticker: Ticker) -> float:
        first = next(self._rounds) * ROW_COUNT * 1_000
        rows = make_rows(range(first, first + count), self._tenant_count)
        self._place.topic.append_many(rows)
        start = ticker()
        found = catch_up(self._engine)
        seconds = ticker() - start
        if found != count:
            raise RuntimeError(f"{found} changes came of {count}")
        return count / seconds
