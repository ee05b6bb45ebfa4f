"""Runs the tasks of a driver on an executor, and packs what the two exchange.

Layout     the driver's version, a line feed, then the tasks, pickled and compressed; what they
           share is packed alike, without the version. The executor returns outcomes and the counts
           of the tasks' requests to object stores.
Invariant  tasks of another version of varve are refused before they are unpickled. A client that
           may send tasks to executors may run any code there, as with all of Spark.
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

_COMPRESSION_LEVEL: Final = 1
"""The fastest of zlib."""
_REMEDY: Final = "package the driver's with `varve job package`, or install the same version there"


def check_version(driver: str) -> None:
    """Raises VersionMismatch where this process has another varve than the driver."""
    if driver != varve.__version__:
        raise VersionMismatch(
            f"an executor has varve {varve.__version__}, the driver {driver:.40}: {_REMEDY}"
        )


def pack_bundle(tasks: Sequence[Task[Any]]) -> bytes:
    """The tasks of one Spark task, as the driver sends them."""
    return varve.__version__.encode() + b"\n" + _pack(tuple(tasks))


def pack_shared(shared: object) -> bytes:
    """The value that all tasks of a stage share, as the driver sends it once."""
    return _pack(shared)


def run_bundle(data: bytes, shared: bytes | None) -> bytes:
    """Runs the tasks of `pack_bundle` on an executor; returns data for `unpack_outcomes`."""
    driver, _, packed = data.partition(b"\n")
    check_version(driver.decode())
    before = count_requests()
    tasks = _unpack_tasks(packed)
    shared_value = None if shared is None else _unpack_tasks(shared)
    outcomes = [run_task(task, shared_value) for task in tasks]
    freeze_objects_once()
    return _pack((outcomes, count_requests() - before))


def unpack_outcomes(data: bytes) -> tuple[list[Any], StoreCount]:
    """The outcomes of tasks, and the counts of their requests to object stores."""
    outcomes, count = _unpack(data)
    return outcomes, count


def _unpack_tasks(packed: bytes) -> Any:
    try:
        return _unpack(packed)
    except (AttributeError, ImportError, TypeError) as error:
        raise VersionMismatch(
            f"an executor cannot decode the tasks of the driver ({type(error).__name__}: "
            f"{error!s:.200}): both have varve {varve.__version__}, but their code "
            f"differs; {_REMEDY}"
        ) from error


def _pack(value: object) -> bytes:
    return zlib.compress(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL), _COMPRESSION_LEVEL)


def _unpack(data: bytes) -> Any:
    return pickle.loads(zlib.decompress(data))


@cache
def freeze_objects_once() -> None:
    """Excludes all objects from garbage collection, once per process after its first task."""
    gc.collect()
    gc.freeze()
