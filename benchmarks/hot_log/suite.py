"""The suite `hot_log`."""

from benchmarks.hot_log.append import AppendMeasure
from benchmarks.hot_log.build import BuildMeasure
from benchmarks.hot_log.clean_open import CleanOpenMeasure
from benchmarks.hot_log.flush import FlushMeasure
from benchmarks.hot_log.parse import ParseMeasure
from benchmarks.hot_log.read import ReadMeasure
from benchmarks.hot_log.recovery import RecoveryMeasure
from benchmarks.measure import Suite

HOT_LOG = Suite(
    name="hot_log",
    title="hot log: append, flush, build, read, parse, recover, open",
    measures=(
        AppendMeasure(),
        FlushMeasure(),
        BuildMeasure(),
        ReadMeasure(),
        ParseMeasure(),
        RecoveryMeasure(),
        CleanOpenMeasure(),
    ),
)
