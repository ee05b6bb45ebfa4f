"""What a run did to a table."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from varve.jobs.results import JobResult
from varve.jobs.table.definition import TableDefinition
from varve.jobs.table.schema import Fields
from varve.jobs.table.settings import TableMode, ValueFormat
from varve.jobs.table.tasks import Written


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResult(JobResult):
    """One run.

    `records` were read; `deleted` of them had no value, `bad` of them went to the side table.
    `expired_rows` were removed below the log start. `missed` offsets had left the log before the
    table had them. `is_rebuilt` tells that a table of keys was made anew, since deletions may have
    left the log unseen, or single records were erased. `inferred` and `added_columns` tell columns
    as a schema file has them. `offsets` are the next ones to read.
    """

    table: str
    topic: str
    mode: TableMode
    format: ValueFormat
    columns: tuple[str, ...]
    inferred: tuple[str, ...] = ()
    added_columns: tuple[str, ...] = ()
    records: int = 0
    deleted: int = 0
    bad: int = 0
    expired_rows: int = 0
    missed: int = 0
    is_rebuilt: bool = False
    commits: int = 0
    files: int = 0
    bytes: int = 0
    swept: int = 0
    offsets: Mapping[int, int] = field(default_factory=dict)
    snapshot_id: int | None = None
    elapsed_ms: int = 0

    @classmethod
    def begin(
        cls, table: str, definition: TableDefinition, guessed: Fields, added: Fields, swept: int
    ) -> "TableResult":
        return cls(
            table=table,
            topic=definition.topic,
            mode=definition.mode,
            format=definition.format,
            columns=tuple(one.describe() for one in definition.fields),
            inferred=tuple(one.describe() for one in guessed),
            added_columns=tuple(one.describe() for one in added),
            swept=swept,
        )

    def add(self, written: Written) -> "TableResult":
        """With one more commit."""
        return replace(
            self,
            records=self.records + written.rows + written.bad_rows,
            deleted=self.deleted + written.deleted_rows,
            bad=self.bad + written.bad_rows,
            commits=self.commits + 1,
            files=self.files + len(written.added),
            bytes=self.bytes + sum(one.file_size_in_bytes for one in written.added),
        )

    def to_json(self) -> dict[str, object]:
        return {
            "table": self.table,
            "topic": self.topic,
            "mode": str(self.mode),
            "format": str(self.format),
            "columns": list(self.columns),
            "inferred": list(self.inferred),
            "added_columns": list(self.added_columns),
            "records": self.records,
            "deleted": self.deleted,
            "bad": self.bad,
            "expired_rows": self.expired_rows,
            "missed": self.missed,
            "rebuilt": self.is_rebuilt,
            "commits": self.commits,
            "files": self.files,
            "bytes": self.bytes,
            "swept": self.swept,
            "offsets": {str(number): offset for number, offset in self.offsets.items()},
            "snapshot_id": self.snapshot_id,
            "elapsed_ms": self.elapsed_ms,
        }
