"""Every suite the command line knows."""

from benchmarks.compaction.suite import COMPACTION
from benchmarks.hot_log.suite import HOT_LOG

SUITES = (HOT_LOG, COMPACTION)
