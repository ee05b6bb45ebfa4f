"""The records that a deduplication keeps, written to a topic; late ones to another.

Invariant  a batch is written once for each topic, by the sink's epochs: its number is Spark's.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from varve.jobs.derived_outputs import OutputKind
from varve.spark.columns import make_schema
from varve.spark.dedup.plan import unpack_rows

_LATE: str = "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOutput:
    """A topic of a log directory; it is made, with as many partitions as the source has."""

    directories: tuple[str, ...]
    topic: str
    options: tuple[tuple[str, str], ...] = ()

    kind = OutputKind.TOPIC

    @property
    def place(self) -> str:
        return self.directories[0]

    @property
    def name(self) -> str:
        return self.topic

    @property
    def how(self) -> tuple[tuple[str, str], ...]:
        return (("directory", ",".join(self.directories)),)

    def __str__(self) -> str:
        return f"{self.topic} in {self.place}"

    def sink_options(self, topic: str, *, sink_id: str, partitions: int) -> dict[str, str]:
        """What the sink is told."""
        given = {
            "directory": ",".join(self.directories),
            "topic": topic,
            "sinkId": sink_id,
            "createTopic": "true",
            "partitions": str(partitions),
        }
        return {**given, **dict(self.options)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicWriter:
    """Writes one stream of results."""

    output: TopicOutput
    side_topic: str | None
    sink_id: str
    partitions: int
    bucket_keys: tuple[int, ...]

    def start(self, results: DataFrame) -> DataStreamWriter:
        """The stream to be started."""
        if self.side_topic is not None:
            return results.writeStream.foreachBatch(self._write_both)
        return (
            self._rows(results, is_late=False)
            .writeStream.format("varve")
            .options(**self._options(self.output.topic, self.sink_id))
        )

    def _write_both(self, results: DataFrame, batch_id: int) -> None:
        """Late records first; both writes know by the batch whether they were done."""
        assert self.side_topic is not None
        results.persist()
        try:
            for topic, is_late, sink_id in (
                (self.side_topic, True, f"{self.sink_id}-{_LATE}"),
                (self.output.topic, False, self.sink_id),
            ):
                options = {**self._options(topic, sink_id), "epoch": str(batch_id)}
                write = self._rows(results, is_late=is_late).write.format("varve")
                write.options(**options).mode("append").save()
        finally:
            results.unpersist()

    def _rows(self, results: DataFrame, *, is_late: bool) -> DataFrame:
        rows = unpack_rows(results, make_schema(), is_late=is_late, bucket_keys=self.bucket_keys)
        return rows.drop("topic")

    def _options(self, topic: str, sink_id: str) -> dict[str, str]:
        return self.output.sink_options(topic, sink_id=sink_id, partitions=self.partitions)
