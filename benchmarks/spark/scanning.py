"""Reading all rows of a topic with the source `varve`, against the same rows as Parquet."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from benchmarks.measure import Contest, MeasureSkipped, Scale, at_least
from benchmarks.sizes import SizeUnit, format_bytes
from benchmarks.spark.cold_topic import SIZE_FACTOR, ColdTopic, shape_of, write_cold
from benchmarks.spark.figures import make_contests
from benchmarks.spark.runs import ParquetRun, ScanRun
from benchmarks.spark.sessions import Sessions
from benchmarks.workspace import Workspace

_FEW_COLUMNS = ("partition", "offset", "timestamp", "key")


class ScanMeasure:
    """Size: bytes of the topic's records."""

    name = "scan"
    title = "reading all rows of a topic, against the same rows as Parquet"
    size_unit = SizeUnit.BYTES

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (8 << 20, 16 << 20) if quick else (128 << 20, 256 << 20)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        workspace.require(size * SIZE_FACTOR * len(scale.record_bytes))
        with workspace.directory("scan") as parent:
            contests: list[Contest] = []
            for record_bytes in scale.record_bytes[: 1 if scale.is_quick else None]:
                shape = shape_of(scale, record_bytes)
                directory = parent / str(record_bytes)
                topic = write_cold(directory, shape, shape.count_records(size))
                parquet = str(directory / "parquet")
                self._sessions.run(ParquetRun(topic.url, parquet))
                contests += self._contests(topic, parquet, scale)
            self._sessions.warm_up(contests, scale)
            yield contests

    def _contests(self, topic: ColdTopic, parquet: str, scale: Scale) -> list[Contest]:
        contests: list[Contest] = []
        reads = (
            ("scan", (), at_least(0.7), "every standard column, written nowhere"),
            (
                "scan_few",
                _FEW_COLUMNS,
                None,
                f"columns {', '.join(_FEW_COLUMNS)}: a log has them beside its values, Parquet "
                "apart",
            ),
        )
        for name, columns, aim, note in reads[: 1 if scale.is_quick else None]:
            contests += make_contests(
                name,
                partial(self._sessions.run, ScanRun(topic.url, columns)),
                partial(self._sessions.run, ScanRun(parquet, columns)),
                mib=topic.mib,
                scale=scale,
                aim=aim,
                note=f"{note}; MiB are those of the log on both sides",
                within=format_bytes(topic.shape.record_bytes),
            )
        return contests


class KafkaSourceMeasure:
    """Size: bytes of the topic's records."""

    name = "scan_kafka"
    title = "reading all rows of a topic, against Spark's own Kafka source"
    size_unit = SizeUnit.BYTES

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (8 << 20, 16 << 20) if quick else (128 << 20, 256 << 20)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        raise MeasureSkipped("Spark's Kafka source needs a broker, and varve has no server yet")
        yield ()
