"""The suite `shapes`."""

from benchmarks.measure import Suite
from benchmarks.shapes.appending import AppendMeasure
from benchmarks.shapes.compacting import CompactionMeasure, HotRowMeasure
from benchmarks.shapes.many_shapes import FanOutMeasure, ShapesMeasure
from benchmarks.shapes.restarting import RestartMeasure
from benchmarks.shapes.syncing import LatencyMeasure, SyncMeasure

SHAPES = Suite(
    name="shapes",
    title="shapes: their logs, many of them, and the HTTP server",
    measures=(
        AppendMeasure(),
        SyncMeasure(),
        LatencyMeasure(),
        HotRowMeasure(),
        CompactionMeasure(),
        ShapesMeasure(),
        FanOutMeasure(),
        RestartMeasure(),
    ),
    quick_seconds=75.0,
)
