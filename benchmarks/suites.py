"""Every suite the command line knows."""

from benchmarks.cold_tier.suite import COLD_TIER
from benchmarks.compaction.suite import COMPACTION
from benchmarks.dedup.suite import DEDUP
from benchmarks.hot_log.suite import HOT_LOG
from benchmarks.server.suite import SERVER
from benchmarks.shapes.suite import SHAPES
from benchmarks.spark.suite import SPARK
from benchmarks.windows.suite import WINDOWS

SUITES = (HOT_LOG, COMPACTION, COLD_TIER, SPARK, DEDUP, WINDOWS, SHAPES, SERVER)
