"""What a table is to be: how it takes records, what their values are, how much at a time."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from varve.foundation.errors import InvalidRequest

COMMIT_BYTES: Final = 1 << 30
BUCKETS: Final = 16
INFER_RECORDS: Final = 1000
SPLIT_BYTES: Final = 32 << 20


class TableMode(StrEnum):
    """What becomes a row."""

    APPEND = "append"
    """Every record, deletions among them."""
    UPSERT = "upsert"
    """The last record of each key; a deleted key has none."""


class ValueFormat(StrEnum):
    """What values are."""

    RAW = "raw"
    JSON = "json"
    AVRO = "avro"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """How a table is made and kept.

    Mode, format and buckets are those of the table once it exists; None takes them from there.
    `schema` is the text of a schema file. A batch of about `commit_bytes` is one commit.
    """

    mode: TableMode | None = None
    format: ValueFormat | None = None
    schema: str | None = None
    schema_name: str = "the schema"
    registry: str | None = None
    buckets: int | None = None
    commit_bytes: int = COMMIT_BYTES
    split_bytes: int = SPLIT_BYTES
    infer_records: int = INFER_RECORDS
    is_adding_columns: bool = False
    is_keeping_expired: bool = False

    def __post_init__(self) -> None:
        if self.buckets is not None and not 1 <= self.buckets <= 10_000:
            raise InvalidRequest(f"{self.buckets} buckets: there are 1 to 10000")
        for name in ("commit_bytes", "split_bytes", "infer_records"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} is {getattr(self, name)}, it must be at least 1")
        if self.format is ValueFormat.RAW and (self.schema or self.registry):
            raise InvalidRequest("raw values have no schema: leave it out, or give another format")
        if self.registry is not None and self.format not in (ValueFormat.AVRO, None):
            raise InvalidRequest("a registry holds schemas of Avro values: give format avro")
