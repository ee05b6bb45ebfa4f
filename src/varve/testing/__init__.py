"""A test kit for other projects: an in-process store, a virtual clock, planned crashes."""

# Everything is imported when it is first used: pytest loads this package with the plugin.

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
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

_MODULES: Final = {
    "CrashMode": "varve.testing.faulty_disk",
    "KafkaKit": "varve.testing.kafka_kit",
    "PlannedCrash": "varve.testing.virtual_store",
    "PowerLoss": "varve.foundation.errors",
    "VirtualStore": "varve.testing.virtual_store",
}
"""Where the names are that are not in `faulty_object_store`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'varve.testing' has no attribute {name!r}")
    module = import_module(_MODULES.get(name, "varve.testing.faulty_object_store"))
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return __all__
