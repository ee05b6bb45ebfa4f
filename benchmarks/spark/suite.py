"""The suite `spark`."""

from benchmarks.measure import Suite
from benchmarks.spark.compacting import CompactMeasure
from benchmarks.spark.erasing import EraseMeasure
from benchmarks.spark.growing import CoresMeasure, GrowthMeasure
from benchmarks.spark.scanning import KafkaSourceMeasure, ScanMeasure
from benchmarks.spark.sessions import Sessions
from benchmarks.spark.shuffling import ShuffleMeasure

_SESSIONS = Sessions()

SPARK = Suite(
    name="spark",
    title="jobs on Spark: compact, scan, erase, what is sent, growth, cores",
    measures=(
        CompactMeasure(_SESSIONS),
        ShuffleMeasure(_SESSIONS),
        ScanMeasure(_SESSIONS),
        KafkaSourceMeasure(),
        EraseMeasure(_SESSIONS),
        GrowthMeasure(_SESSIONS),
        CoresMeasure(_SESSIONS),
    ),
    batch_bytes=(16 << 10,),
    quick_seconds=75.0,
)
