"""The suite `compaction`."""

from benchmarks.compaction.beside_appends import BesideAppendsMeasure
from benchmarks.compaction.index_build import IndexBuildMeasure
from benchmarks.compaction.kafka import KafkaMeasure
from benchmarks.compaction.many_keys import ManyKeysMeasure
from benchmarks.compaction.offset_map import OffsetMapMeasure
from benchmarks.compaction.second_pass import SecondPassMeasure
from benchmarks.measure import Suite

COMPACTION = Suite(
    name="compaction",
    title="compaction: clean, clean again, plan many keys, index, appends meanwhile",
    measures=(
        OffsetMapMeasure(),
        KafkaMeasure(),
        SecondPassMeasure(),
        ManyKeysMeasure(),
        BesideAppendsMeasure(),
        IndexBuildMeasure(),
    ),
    batch_bytes=(16 << 10,),
)
