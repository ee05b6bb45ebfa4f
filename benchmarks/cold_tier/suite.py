"""The suite `cold_tier`."""

from benchmarks.cold_tier.beside_cold import BesideColdMeasure
from benchmarks.cold_tier.commits import CommitMeasure, ManifestMemoryMeasure
from benchmarks.cold_tier.copying import CopyMeasure
from benchmarks.cold_tier.first_record import FirstRecordMeasure
from benchmarks.cold_tier.reading import ColdReadMeasure
from benchmarks.measure import Suite

COLD_TIER = Suite(
    name="cold_tier",
    title="cold tier: copy, read, first record, commits, hot work beside cold readers, memory",
    measures=(
        CopyMeasure(),
        ColdReadMeasure(),
        FirstRecordMeasure(),
        CommitMeasure(),
        BesideColdMeasure(),
        ManifestMemoryMeasure(),
    ),
)
