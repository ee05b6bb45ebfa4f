"""The lease of a partition in the remote tier: one job at a time rewrites its segments.

Two concurrent jobs would remove each other's announced outputs as leftovers. No record would be
lost, because a commit requires that its outputs are still announced, but work would be. For the
same reason the copier does not touch announced segments while a lease is renewed.

Layout     `lease.json` below the partition's prefix: job, host, pid, began_ms, at_ms.
Invariant  acquired by create-if-absent. The lease of a killed job is taken over when its process on
           this host has ended, when it was not renewed for a day, or on request. Two jobs that take
           over at the same moment may both continue.
Crash      a stale lease blocks neither readers nor the copier.
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
"""Time between renewals, far below the day after which a lease is stale."""
HEARTBEAT_S: Final = RENEW_MS / 1000
_ATTEMPTS_MAX: Final = 3
_PID_MAX: Final = 2**31 - 1
_TIME_MAX_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""

_lock = threading.Lock()
_running_jobs: set[tuple[str, str]] = set()  # guarded by _lock; lease keys and jobs of this process


@dataclass(frozen=True, slots=True)
class Lease:
    """The job, host and process that hold a lease; `at_ms` is the time of the last renewal."""

    job: str
    host: str
    pid: int
    began_ms: int
    at_ms: int

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


class HeldLease:
    """A lease held by a running job, renewed by the job and by a thread of `hold_lease`."""

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
                f"{self._path}: {'no job' if lease is None else lease.job} has the lease of "
                f"{self._lease.job}: it was taken over, so this job ends; nothing of the partition "
                "was changed by it"
            )
        self._lease = replace(self._lease, at_ms=now_ms)
        self._objects.put(self._path.lease_key, self._lease.encode())

    def renew_until(self, is_done: threading.Event) -> None:
        """Renews the lease every few minutes; one stage of a job may take longer than a day.

        Failures are ignored here: the job renews the lease itself before it commits.
        """
        while not is_done.wait(HEARTBEAT_S):
            with suppress(StoreError):
                self.renew()

    def end(self) -> None:
        """Deletes the lease, if this job still holds it."""
        lease = find_lease(self._objects, self._path)
        if lease is not None and lease.job == self._lease.job:
            self._objects.delete([self._path.lease_key])


def find_lease(objects: ObjectStore, path: RemotePath) -> Lease | None:
    """The lease of a partition; None without one, or if the object cannot be decoded."""
    try:
        document = json.loads(objects.get(path.lease_key))
        return Lease(
            job=str(document["job"]),
            host=str(document["host"]),
            pid=_check_number(document, "pid", _PID_MAX, least=1),
            began_ms=_check_number(document, "began_ms", _TIME_MAX_MS),
            at_ms=_check_number(document, "at_ms", _TIME_MAX_MS),
        )
    except (ObjectNotFound, ValueError, KeyError, TypeError, RecursionError):
        return None


def _check_number(document: Any, name: str, limit: int, *, least: int = 0) -> int:
    value = document[name]
    if type(value) is not int or not least <= value <= limit:
        raise ValueError(f"{name} is {value!r:.80}")
    return value


@contextmanager
def hold_lease(
    objects: ObjectStore, path: RemotePath, job: str, *, clock: Clock, takes_over: bool
) -> Iterator[HeldLease]:
    """Holds the lease of a partition for the duration of the block.

    Raises Unavailable with the job that holds it, unless it has ended or `takes_over` is true.
    """
    now_ms = clock.now_ms()
    lease = Lease(job, socket.gethostname(), os.getpid(), now_ms, now_ms)
    running_job = (path.lease_key, job)
    with _lock:
        _running_jobs.add(running_job)
    try:
        _acquire(objects, path, lease, takes_over=takes_over)
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
            # Another job takes over a lease that could not be deleted.
            with suppress(StoreError):
                held.end()
    finally:
        with _lock:
            _running_jobs.discard(running_job)


def _acquire(objects: ObjectStore, path: RemotePath, lease: Lease, *, takes_over: bool) -> None:
    for _ in range(_ATTEMPTS_MAX):
        try:
            objects.create(path.lease_key, lease.encode())
            return
        except ObjectExists:
            holder = find_lease(objects, path)
        if holder is not None and holder.job == lease.job:
            return  # The create succeeded, and its response was lost.
        if holder is not None and not takes_over and not _has_ended(path, holder, lease):
            raise Unavailable(_describe_holder(path, holder))
        # An unreadable lease belongs to no job.
        objects.put(path.lease_key, lease.encode())
        holder = find_lease(objects, path)
        if holder == lease:
            return
    raise Unavailable(f"{path}: its lease changes all the time; run the job again")


def _has_ended(path: RemotePath, lease: Lease, own: Lease) -> bool:
    if lease.at_ms <= own.at_ms - ANNOUNCEMENT_TIMEOUT_MS:
        return True
    if lease.host != own.host:
        return False
    if lease.pid == own.pid:
        with _lock:
            return (path.lease_key, lease.job) not in _running_jobs
    return not _has_process(lease.pid)


def _has_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _describe_holder(path: RemotePath, lease: Lease) -> str:
    began = datetime.fromtimestamp(lease.began_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return (
        f"{path}: another job rewrites it, {lease.job}, which began at {began} on {lease.host} "
        f"(process {lease.pid}): wait for it; if it is gone, `varve job compact --take-over` takes "
        "its lease"
    )
