"""varve: a log store that speaks Kafka's bytes.

Everything but the version and the errors is imported when it is first used, so that `import varve`
stays quick.
"""

from typing import TYPE_CHECKING, Any

from varve.foundation import errors
from varve.foundation.errors import StoreError

if TYPE_CHECKING:
    from varve.embedded import (
        AppendSummary,
        Batch,
        Cleaned,
        Codec,
        Partition,
        PartitionOffsets,
        Record,
        RecordColumns,
        RecordPosition,
        Store,
        StoredRecord,
        StoreHealth,
        Topic,
        open,  # noqa: A004, the word users expect
    )

__version__ = "0.1.0"

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
    "StoreError",
    "StoreHealth",
    "StoredRecord",
    "Topic",
    "__version__",
    "errors",
    "open",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'varve' has no attribute {name!r}")
    from varve import embedded

    return getattr(embedded, name)


def __dir__() -> list[str]:
    return __all__
