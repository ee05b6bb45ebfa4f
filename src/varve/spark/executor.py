"""What an executor does with tasks that a driver sent: the only code both sides must agree on.

Layout     the driver's version, a line feed, then the tasks, pickled and compressed; what they
           share is packed alike, without the version. Back come the outcomes and what the tasks
           asked of object stores.
Invariant  tasks of another version of varve are refused before they are unpickled. Whoever may send
           to the executors may run code there, as everywhere on Spark.
"""

import gc
import pickle
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import varve
from varve.foundation.errors import VersionMismatch
from varve.jobs.tasks import Task, run_task
from varve.jobs.tier.bucket import StoreCount, count_requests

_LEVEL: Final = 1
"""Of compression."""
_REMEDY: Final = "ship the driver's with `varve job ship`, or install the same version there"


def check_version(driver: str) -> None:
    """Raises VersionMismatch where this process has another varve than the driver."""
    if driver != varve.__version__:
        raise VersionMismatch(
            f"an executor has varve {varve.__version__}, the driver {driver:.40}: {_REMEDY}"
        )


def pack_bundle(tasks: Sequence[Task[Any]]) -> bytes:
    """What the driver sends for one Spark task."""
    return varve.__version__.encode() + b"\n" + _pack(tuple(tasks))


def pack_shared(shared: object) -> bytes:
    """What the driver sends once per stage."""
    return _pack(shared)


def run_bundle(data: bytes, shared: bytes | None) -> bytes:
    """On an executor: runs the tasks of `pack_bundle`, and gives what `unpack_outcomes` takes."""
    driver, _, packed = data.partition(b"\n")
    check_version(driver.decode())
    before = count_requests()
    tasks = _unpack_tasks(packed)
    common = None if shared is None else _unpack_tasks(shared)
    outcomes = [run_task(task, common) for task in tasks]
    freeze_objects_once()
    return _pack((outcomes, count_requests() - before))


def unpack_outcomes(data: bytes) -> tuple[list[Any], StoreCount]:
    """What came back: the outcomes of tasks, and what they asked of object stores."""
    outcomes, count = _unpack(data)
    return outcomes, count


def _unpack_tasks(packed: bytes) -> Any:
    try:
        return _unpack(packed)
    except (AttributeError, ImportError, TypeError) as error:
        raise VersionMismatch(
            f"an executor cannot read what the driver sends ({type(error).__name__}: "
            f"{error!s:.200}): both say they are varve {varve.__version__}, but their code "
            f"differs; {_REMEDY}"
        ) from error


def _pack(value: object) -> bytes:
    return zlib.compress(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL), _LEVEL)


def _unpack(data: bytes) -> Any:
    return pickle.loads(zlib.decompress(data))


@cache
def freeze_objects_once() -> None:
    """Once in a process, when a first task is done: leaves what is there out of collections."""
    gc.collect()
    gc.freeze()
