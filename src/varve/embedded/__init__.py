"""The public Python API: open a directory, its topics, append and read."""

from varve.embedded.maintenance import CleanResult, StoreHealth
from varve.embedded.partition import Partition
from varve.embedded.store import Store, open  # noqa: A004, the word users expect
from varve.embedded.topic import Topic
from varve.foundation.topic_records import (
    AppendResult,
    BulkAppendResult,
    PartitionOffsets,
    StoredRecord,
)
from varve.records import Batch, Codec, RecordColumns

__all__ = [
    "AppendResult",
    "Batch",
    "BulkAppendResult",
    "CleanResult",
    "Codec",
    "Partition",
    "PartitionOffsets",
    "RecordColumns",
    "Store",
    "StoreHealth",
    "StoredRecord",
    "Topic",
    "open",
]
