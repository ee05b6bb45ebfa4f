"""Object store protocol on obstore: directory, memory, S3, GCS, Azure; wrappers that retry,
measure, cache, mirror, fail.
"""

from varve.object_store.azure import AzureObjectStore, AzureSettings
from varve.object_store.caching import CacheUsage, CachingObjectStore
from varve.object_store.directory import DirectoryObjectStore
from varve.object_store.fault_plan import FaultKind, ObjectFaultPlan, ObjectStep
from varve.object_store.faulty import FaultyObjectStore
from varve.object_store.gcs import GcsObjectStore, GcsSettings
from varve.object_store.lazy import LazyObjectStore
from varve.object_store.measured import MeasuredObjectStore, StoreUsage
from varve.object_store.memory import MemoryObjectStore
from varve.object_store.mirror_notes import LevelMark
from varve.object_store.mirror_opening import open_mirrored
from varve.object_store.mirror_repair import Difference, Fault, MirrorComparison
from varve.object_store.mirror_status import MirrorStatus
from varve.object_store.mirrored import MirroredObjectStore, MirrorRepair
from varve.object_store.object_store import Buffer, ObjectInfo, ObjectStore
from varve.object_store.prices import (
    AZURE_HOT,
    FREE,
    GCS_STANDARD,
    S3_STANDARD,
    PriceTable,
    RequestKind,
    default_prices,
)
from varve.object_store.registry import Opener, open_lazily, open_object_store, register
from varve.object_store.retrying import RetryingObjectStore, RetryPolicy
from varve.object_store.s3 import S3ObjectStore, S3Settings

__all__ = [
    "AZURE_HOT",
    "FREE",
    "GCS_STANDARD",
    "S3_STANDARD",
    "AzureObjectStore",
    "AzureSettings",
    "Buffer",
    "CacheUsage",
    "CachingObjectStore",
    "Difference",
    "DirectoryObjectStore",
    "Fault",
    "FaultKind",
    "FaultyObjectStore",
    "GcsObjectStore",
    "GcsSettings",
    "LazyObjectStore",
    "LevelMark",
    "MeasuredObjectStore",
    "MemoryObjectStore",
    "MirrorComparison",
    "MirrorRepair",
    "MirrorStatus",
    "MirroredObjectStore",
    "ObjectFaultPlan",
    "ObjectInfo",
    "ObjectStep",
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
