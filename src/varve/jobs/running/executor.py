"""What an executor does with a task that a driver sent: the only code both sides must agree on.

Layout     the driver's version, a line feed, then the task, pickled and compressed; back comes the
           outcome and what the task asked of object stores, packed alike.
Invariant  a task of another version of varve is refused before it is unpickled. Whoever may send to
           the executors may run code there, as everywhere on Spark.
"""

import pickle
import zlib
from typing import Any, Final

import varve
from varve.foundation.errors import VersionMismatch
from varve.jobs.running.distributor import Task, run_task
from varve.jobs.running.store_count import StoreCount
from varve.jobs.running.worker_memory import settle
from varve.jobs.tier.address import count_requests

_LEVEL: Final = 1
"""Of compression: bitmaps of one range of hashes are mostly zeros."""
_REMEDY: Final = "ship the driver's with `varve job ship`, or install the same version there"


def check_version(driver: str) -> None:
    """Raises VersionMismatch where this process has another varve than the driver."""
    if driver != varve.__version__:
        raise VersionMismatch(
            f"an executor has varve {varve.__version__}, the driver {driver:.40}: {_REMEDY}"
        )


def pack_task(task: Task) -> bytes:
    """What the driver sends."""
    return varve.__version__.encode() + b"\n" + _pack(task)


def run_packed(data: bytes) -> bytes:
    """On an executor: carries out a task of `pack_task`, and gives what `unpack_outcome` takes."""
    driver, _, packed = data.partition(b"\n")
    check_version(driver.decode())
    before = count_requests()
    outcome = run_task(_unpack_task(packed))
    settle()
    return _pack((outcome, count_requests() - before))


def unpack_outcome(data: bytes) -> tuple[object, StoreCount]:
    """What came back: the outcome of a task, and what it asked of object stores."""
    outcome, count = _unpack(data)
    return outcome, count


def _unpack_task(packed: bytes) -> Any:
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
