"""The suite `server`."""

from benchmarks.measure import Suite
from benchmarks.server.brokers import SharedPair
from benchmarks.server.cold import ColdMeasure
from benchmarks.server.library import GroupMeasure, LatencyMeasure, LibraryMeasure
from benchmarks.server.life import MemoryMeasure, StartMeasure
from benchmarks.server.load import warm_up
from benchmarks.server.throughput import FetchMeasure, ProduceMeasure

_PAIR = SharedPair(warm_up)

SERVER = Suite(
    name="server",
    title="varve serve against Apache Kafka 4.1.2 on the same machine, with the same clients",
    measures=(
        ProduceMeasure(_PAIR),
        FetchMeasure(_PAIR),
        ColdMeasure(),
        LibraryMeasure(_PAIR),
        LatencyMeasure(_PAIR),
        GroupMeasure(_PAIR),
        MemoryMeasure(_PAIR),
        StartMeasure(),
    ),
    quick_seconds=75.0,
)
