"""Opening an engine that has many shapes, until its feed gives changes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.measure import Contest, Scale, Ticker
from benchmarks.shapes.engines import TOPIC, Place, create_shapes, open_engine, open_place
from benchmarks.sizes import SizeUnit
from benchmarks.workspace import Workspace

_FEW = 10
_REPEAT_COUNT_MAX = 5
_SHAPE_BYTES = 64 << 10


class RestartMeasure:
    """Size: shapes in the directory."""

    name = "restart"
    title = "an engine opened again, against one with ten shapes"
    size_unit = SizeUnit.COUNT

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (1_000,) if quick else (1_000, 10_000)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        workspace.require(size * _SHAPE_BYTES)
        with _prepared(workspace, size) as many, _prepared(workspace, _FEW) as few:
            yield [
                Contest(
                    self.name,
                    "ms",
                    lambda: _open_ms(many, size, scale.ticker),
                    lambda: _open_ms(few, _FEW, scale.ticker),
                    None,
                    "until the registry is loaded and the feed has read to the topic's end",
                    repeat_count_max=_REPEAT_COUNT_MAX,
                )
            ]


@contextmanager
def _prepared(workspace: Workspace, shape_count: int) -> Iterator[Place]:
    with (
        workspace.directory("restart") as directory,
        open_place(directory, shape_count) as place,
    ):
        with open_engine(place) as engine:
            create_shapes(place, engine, [f"tenant = 't{number}'" for number in range(shape_count)])
            engine.checkpoint_now()
        yield place


def _open_ms(place: Place, shape_count: int, ticker: Ticker) -> float:
    start = ticker()
    with open_engine(place) as engine:
        engine.run_turn(TOPIC)
        milliseconds = (ticker() - start) * 1_000
        if len(engine.shapes()) != shape_count:
            raise RuntimeError(f"{len(engine.shapes())} shapes are there of {shape_count}")
    return milliseconds
