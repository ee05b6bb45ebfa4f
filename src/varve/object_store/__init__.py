"""Object stores behind one protocol: a directory, memory, S3, GCS, Azure; retries, metering, a
mirror.
"""

from varve.object_store.cloud import (
    AzureObjectStore,
    AzureSettings,
    GcsObjectStore,
    GcsSettings,
    S3ObjectStore,
    S3Settings,
)
from varve.object_store.directory import DirectoryObjectStore
from varve.object_store.metering import (
    MeteredObjectStore,
    PriceTable,
    RequestKind,
    StoreUsage,
    default_prices,
)
from varve.object_store.mirror import MirroredObjectStore, MirrorRepair, MirrorStatus
from varve.object_store.mirror_repair import Difference, Fault, MirrorComparison
from varve.object_store.obstore_store import MemoryObjectStore
from varve.object_store.opening import (
    LazyObjectStore,
    Opener,
    open_lazily,
    open_mirrored,
    open_object_store,
    register,
)
from varve.object_store.protocol import Buffer, ObjectInfo, ObjectStore
from varve.object_store.retry import RetryingObjectStore, RetryPolicy

__all__ = [
    "AzureObjectStore",
    "AzureSettings",
    "Buffer",
    "Difference",
    "DirectoryObjectStore",
    "Fault",
    "GcsObjectStore",
    "GcsSettings",
    "LazyObjectStore",
    "MemoryObjectStore",
    "MeteredObjectStore",
    "MirrorComparison",
    "MirrorRepair",
    "MirrorStatus",
    "MirroredObjectStore",
    "ObjectInfo",
    "ObjectStore",
    "Opener",
    "PriceTable",
    "RequestKind",
    "RetryPolicy",
    "RetryingObjectStore",
    "S3ObjectStore",
    "S3Settings",
    "StoreUsage",
    "default_prices",
    "open_lazily",
    "open_mirrored",
    "open_object_store",
    "register",
]
