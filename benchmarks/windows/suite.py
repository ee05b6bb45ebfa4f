"""The suite `windows`."""

from benchmarks.measure import Suite
from benchmarks.spark.sessions import Sessions
from benchmarks.windows.checking import CheckMeasure
from benchmarks.windows.many_ids import ManyIdsMeasure
from benchmarks.windows.processing import ProcessorMeasure
from benchmarks.windows.restoring import RestoreMeasure
from benchmarks.windows.segment_life import DropMeasure, MemoryMeasure
from benchmarks.windows.window_calls import WindowMeasure

WINDOWS = Suite(
    name="windows",
    title="window stores and deduplication without Spark",
    measures=(
        CheckMeasure(),
        WindowMeasure(),
        DropMeasure(),
        RestoreMeasure(),
        MemoryMeasure(),
        ManyIdsMeasure(),
        ProcessorMeasure(Sessions()),
    ),
    quick_seconds=50.0,
)
