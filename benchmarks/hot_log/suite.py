"""The suite `hot_log`."""

from benchmarks.measure import Suite

HOT_LOG = Suite(
    name="hot_log",
    title="hot log: append, build, read, parse, recover, open",
    measures=(),
)
