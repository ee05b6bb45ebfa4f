"""Tasks travel with the version of varve that sent them, and come back with what they fetched."""

import os
import socket
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

import varve
from varve.cleaning.compaction.rewrite import DamagedSegment
from varve.foundation.errors import (
    Fenced,
    InvalidRequest,
    NotFound,
    ObjectNotFound,
    StoreDenied,
    StoreError,
    VersionMismatch,
)
from varve.jobs.tasks import TaskError
from varve.jobs.tier.bucket import Bucket, StoreCount
from varve.object_store import open_object_store
from varve.spark import worker_daemon
from varve.spark.executor import pack_bundle, pack_shared, run_bundle, unpack_outcomes


@dataclass(frozen=True)
class Fetch:
    """Reads an object, and writes another."""

    address: Bucket
    key: str

    def run(self, shared: None) -> object:
        objects = self.address.objects()
        data = objects.get(self.key)
        objects.put("copy", data + data)
        return len(data)


@pytest.fixture
def address(tmp_path: Path) -> Bucket:
    found = Bucket(f"file:{tmp_path}/bucket")
    with closing(open_object_store(found.url)) as objects:
        objects.put("thing", b"0123456789")
    return found


def test_an_outcome_tells_what_its_task_alone_fetched(address: Bucket) -> None:
    packed = pack_bundle([Fetch(address, "thing")])
    run_bundle(packed, None)
    assert unpack_outcomes(run_bundle(packed, None)) == ([10], StoreCount(2, 10, 20))


def test_a_task_that_failed_on_purpose_tells_its_requests_too(address: Bucket) -> None:
    (outcome,), count = unpack_outcomes(run_bundle(pack_bundle([Fetch(address, "missing")]), None))
    assert isinstance(outcome, TaskError)
    assert type(outcome.error) is ObjectNotFound
    assert count == StoreCount(requests=1)


@dataclass(frozen=True)
class Raise:
    """Raises what all tasks of the stage share."""

    def run(self, shared: TaskError) -> object:
        raise shared.error


class Detailed(StoreError):
    """Its constructor wants more than a message."""

    def __init__(self, message: str, *, detail: int) -> None:
        super().__init__(f"{message} {detail}")
        self.detail = detail


@pytest.mark.parametrize(
    "error",
    [StoreDenied("no"), InvalidRequest("bad"), Fenced("another"), DamagedSegment("torn", 7)],
)
def test_an_error_of_a_task_keeps_its_class(error: StoreError) -> None:
    packed = pack_shared(TaskError(error))
    ((outcome,), _) = unpack_outcomes(run_bundle(pack_bundle([Raise()]), packed))
    assert (type(outcome.error), str(outcome.error)) == (type(error), str(error))
    assert vars(outcome.error) == vars(error)


def test_a_task_of_another_version_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(varve, "__version__", "0.0.9")
        packed = pack_bundle([Fetch(Bucket("file:/nowhere"), "thing")])[:-9]  # never unpickled
    with pytest.raises(VersionMismatch, match=r"executor has varve .*, the driver 0\.0\.9"):
        run_bundle(packed, None)


def test_code_that_differs_under_one_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking: Any = NotFound("as a task, whose class the executor lacks")
    packed = pack_bundle([lacking])
    monkeypatch.delattr("varve.foundation.errors.NotFound")
    with pytest.raises(VersionMismatch, match="their code differs"):
        run_bundle(packed, None)


def test_a_worker_whose_connection_spark_closed_ends_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write_rows(sock: socket.socket, authenticated: bool) -> int:
        while True:
            sock.sendall(b"rows")

    def end(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(worker_daemon, "_spark_worker", write_rows)
    monkeypatch.setattr(os, "_exit", end)
    spark, worker = socket.socketpair()
    spark.close()
    with worker, pytest.raises(SystemExit, match="1"):
        worker_daemon.serve_tasks(worker, authenticated=True)
