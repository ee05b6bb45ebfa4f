"""A test kit for other projects: an in-process store, a virtual clock, planned crashes."""

from varve.disk import PowerLoss
from varve.testing.faulty_disk import CrashMode
from varve.testing.faulty_object_store import (
    FaultKind,
    FaultyObjectStore,
    ObjectFaultPlan,
    ObjectStep,
)
from varve.testing.kafka_kit import KafkaKit
from varve.testing.virtual_store import PlannedCrash, VirtualStore

__all__ = [
    "CrashMode",
    "FaultKind",
    "FaultyObjectStore",
    "KafkaKit",
    "ObjectFaultPlan",
    "ObjectStep",
    "PlannedCrash",
    "PowerLoss",
    "VirtualStore",
]
