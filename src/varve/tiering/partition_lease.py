"""Which job is at work on a partition's cold tier: one that rewrites segments at a time.

Two that rewrite at once would take each other's unfinished outputs for leftovers. No record would
be lost by it, for a commit asks whether its outputs are still announced; but work would be in vain.
For the same reason the copier leaves announced segments alone while a lease is renewed.

Layout     `lease.json` below the partition's prefix: job, host, pid, began_ms, at_ms.
Invariant  taken by create-if-absent. A lease is left behind by a job that was killed: another takes
           it over when the holder's process on this host is gone, when it was not renewed for a
           day, or on request. Two that take over at the same moment may both continue.
Crash      a lease that is left keeps no reader and no copier from anything.
Threads    any; `_lock` guards the jobs of this process. Each lease has a thread that renews it.
"""

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from varve.foundation.clock import Clock
from varve.foundation.errors import ObjectExists, ObjectNotFound, StoreError, Unavailable
from varve.object_store import ObjectStore
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import ANNOUNCEMENT_TIMEOUT_MS

RENEW_MS: Final = 600_000
HEARTBEAT_S: Final = RENEW_MS / 1000
_TRIES: Final = 3
_PID_MAX: Final = 2**31 - 1
_MOMENT_MAX_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""

_lock = threading.Lock()
_at_work: set[tuple[str, str]] = set()  # guarded by _lock; lease keys and jobs of this process


@dataclass(frozen=True, slots=True)
class Lease:
    """Who is at work since when; `at_ms` is when that was last said."""

    job: str
    host: str
    pid: int
    began_ms: int
    at_ms: int

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


class HeldLease:
    """The lease of a job that is at work; renewed by the job and by a thread of `hold_lease`."""

    def __init__(self, objects: ObjectStore, path: RemotePath, lease: Lease, clock: Clock) -> None:
        self._objects = objects
        self._path = path
        self._clock = clock
        self._renewing = threading.Lock()
        self._lease = lease  # guarded by _renewing

    def renew(self) -> None:
        """Renews the lease if that is due; raises Unavailable if another job has taken it over."""
        with self._renewing:
            self._renew()

    def _renew(self) -> None:
        now_ms = self._clock.now_ms()
        if now_ms - self._lease.at_ms < RENEW_MS:
            return
        lease = find_lease(self._objects, self._path)
        if lease is None or lease.job != self._lease.job:
            raise Unavailable(
                f"{self._path}: {'nobody' if lease is None else lease.job} has the lease of "
                f"{self._lease.job}: it was taken over, so this job ends; nothing of the partition "
                "was changed by it"
            )
        self._lease = replace(self._lease, at_ms=now_ms)
        self._objects.put(self._path.lease_key, self._lease.encode())

    def renew_until(self, is_done: threading.Event) -> None:
        """Renews the lease every few minutes; one stage of a job may take longer than a day.

        A failure is left to the job, which renews the lease itself before it commits.
        """
        while not is_done.wait(HEARTBEAT_S):
            with suppress(StoreError):
                self.renew()

    def end(self) -> None:
        """Takes the lease away, if it is still this job's."""
        lease = find_lease(self._objects, self._path)
        if lease is not None and lease.job == self._lease.job:
            self._objects.delete([self._path.lease_key])


def find_lease(objects: ObjectStore, path: RemotePath) -> Lease | None:
    """Who is at work on a partition; None without one, or if the object is not a lease."""
    try:
        document = json.loads(objects.get(path.lease_key))
        return Lease(
            job=str(document["job"]),
            host=str(document["host"]),
            pid=_number(document, "pid", _PID_MAX, least=1),
            began_ms=_number(document, "began_ms", _MOMENT_MAX_MS),
            at_ms=_number(document, "at_ms", _MOMENT_MAX_MS),
        )
    except (ObjectNotFound, ValueError, KeyError, TypeError, RecursionError):
        return None


def _number(document: Any, name: str, limit: int, *, least: int = 0) -> int:
    value = document[name]
    if type(value) is not int or not least <= value <= limit:
        raise ValueError(f"{name} is {value!r:.80}")
    return value


@contextmanager
def hold_lease(
    objects: ObjectStore, path: RemotePath, job: str, *, clock: Clock, takes_over: bool
) -> Iterator[HeldLease]:
    """The lease of a partition for the time of the work in it.

    Raises Unavailable naming the job that has it, unless that is gone or `takes_over` is true.
    """
    now_ms = clock.now_ms()
    lease = Lease(job, socket.gethostname(), os.getpid(), now_ms, now_ms)
    working = (path.lease_key, job)
    with _lock:
        _at_work.add(working)
    try:
        _take(objects, path, lease, takes_over=takes_over)
        held = HeldLease(objects, path, lease, clock)
        is_done = threading.Event()
        heartbeat = threading.Thread(
            target=held.renew_until, args=(is_done,), name=f"varve-lease-{path}", daemon=True
        )
        heartbeat.start()
        try:
            yield held
        finally:
            is_done.set()
            heartbeat.join()
            # Whoever finds a lease that was left behind takes it over.
            with suppress(StoreError):
                held.end()
    finally:
        with _lock:
            _at_work.discard(working)


def _take(objects: ObjectStore, path: RemotePath, lease: Lease, *, takes_over: bool) -> None:
    for _ in range(_TRIES):
        try:
            objects.create(path.lease_key, lease.encode())
            return
        except ObjectExists:
            holder = find_lease(objects, path)
        if holder is not None and holder.job == lease.job:
            return  # The answer to a create was lost.
        if holder is not None and not takes_over and not _is_gone(path, holder, lease):
            raise Unavailable(_busy(path, holder))
        # What cannot be read is nobody's.
        objects.put(path.lease_key, lease.encode())
        holder = find_lease(objects, path)
        if holder == lease:
            return
    raise Unavailable(f"{path}: its lease changes all the time; run the job again")


def _is_gone(path: RemotePath, lease: Lease, own: Lease) -> bool:
    if lease.at_ms <= own.at_ms - ANNOUNCEMENT_TIMEOUT_MS:
        return True
    if lease.host != own.host:
        return False
    if lease.pid == own.pid:
        with _lock:
            return (path.lease_key, lease.job) not in _at_work
    return not _has_process(lease.pid)


def _has_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _busy(path: RemotePath, lease: Lease) -> str:
    began = datetime.fromtimestamp(lease.began_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return (
        f"{path}: another job rewrites it, {lease.job}, which began at {began} on {lease.host} "
        f"(process {lease.pid}): wait for it; if it is gone, `varve job compact --take-over` takes "
        "its lease"
    )
