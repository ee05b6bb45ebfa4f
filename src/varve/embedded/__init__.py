"""The public Python API: open a directory, its topics, append and read."""

from varve.embedded.maintenance import Cleaned, StoreHealth
from varve.embedded.partition import Partition, PartitionOffsets
from varve.embedded.store import Store, open  # noqa: A004, the word users expect
from varve.embedded.stored_record import RecordPosition, StoredRecord
from varve.embedded.topic import AppendSummary, Topic
from varve.records import Batch, Codec, Record, RecordColumns

__all__ = [
    "AppendSummary",
    "Batch",
    "Cleaned",
    "Codec",
    "Partition",
    "PartitionOffsets",
    "Record",
    "RecordColumns",
    "RecordPosition",
    "Store",
    "StoreHealth",
    "StoredRecord",
    "Topic",
    "open",
]
