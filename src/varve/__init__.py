"""varve: a log store that speaks Kafka's bytes.

Everything but the version and the errors is imported when it is first used, so that `import varve`
stays quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from varve import errors
from varve.errors import StoreError

if TYPE_CHECKING:
    from varve.brokers.cluster import Cluster, ClusterTopic, connect
    from varve.brokers.producer import Producer
    from varve.embedded.maintenance import CleanResult, StoreHealth
    from varve.embedded.partition import Partition
    from varve.embedded.store import Store, open  # noqa: A004, the word users expect
    from varve.embedded.topic import Topic
    from varve.foundation.topic_handle import TopicHandle
    from varve.foundation.topic_records import AppendResult, BulkAppendResult, PartitionOffsets
    from varve.foundation.topic_records import StoredRecord as Record
    from varve.jobs.tier.location import TopicLocation
    from varve.records import Batch, Codec, RecordColumns
    from varve.records import Record as NewRecord

__version__ = "0.1.0"

_CLUSTER = "varve.brokers.cluster"
_EMBEDDED = "varve.embedded"
_RECORDS = "varve.records"
_TOPIC_RECORDS = "varve.foundation.topic_records"
_LAZY_NAMES = {
    "AppendResult": (_TOPIC_RECORDS, "AppendResult"),
    "Batch": (_RECORDS, "Batch"),
    "BulkAppendResult": (_TOPIC_RECORDS, "BulkAppendResult"),
    "CleanResult": (_EMBEDDED, "CleanResult"),
    "Cluster": (_CLUSTER, "Cluster"),
    "ClusterTopic": (_CLUSTER, "ClusterTopic"),
    "Codec": (_RECORDS, "Codec"),
    "NewRecord": (_RECORDS, "Record"),
    "Partition": (_EMBEDDED, "Partition"),
    "PartitionOffsets": (_TOPIC_RECORDS, "PartitionOffsets"),
    "Producer": ("varve.brokers.producer", "Producer"),
    "Record": (_TOPIC_RECORDS, "StoredRecord"),
    "RecordColumns": (_RECORDS, "RecordColumns"),
    "Store": (_EMBEDDED, "Store"),
    "StoreHealth": (_EMBEDDED, "StoreHealth"),
    "Topic": (_EMBEDDED, "Topic"),
    "TopicHandle": ("varve.foundation.topic_handle", "TopicHandle"),
    "TopicLocation": ("varve.jobs.tier.location", "TopicLocation"),
    "connect": (_CLUSTER, "connect"),
    "open": (_EMBEDDED, "open"),
}
"""Module and name there of what is imported on first use."""

__all__ = [
    "AppendResult",
    "Batch",
    "BulkAppendResult",
    "CleanResult",
    "Cluster",
    "ClusterTopic",
    "Codec",
    "NewRecord",
    "Partition",
    "PartitionOffsets",
    "Producer",
    "Record",
    "RecordColumns",
    "Store",
    "StoreError",
    "StoreHealth",
    "Topic",
    "TopicHandle",
    "TopicLocation",
    "__version__",
    "connect",
    "errors",
    "open",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY_NAMES:
        raise AttributeError(f"module 'varve' has no attribute {name!r}")
    module, attribute = _LAZY_NAMES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
