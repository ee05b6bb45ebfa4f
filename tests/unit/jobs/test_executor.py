"""Tasks travel with the version of varve that sent them, and come back with what they fetched."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

import varve
from varve.foundation.errors import NotFound, VersionMismatch
from varve.jobs.running.distributor import TaskFailure
from varve.jobs.running.executor import pack_task, run_packed, unpack_outcome
from varve.jobs.running.store_count import StoreCount
from varve.jobs.tier.address import TierAddress
from varve.object_store import open_object_store


@dataclass(frozen=True)
class Fetch:
    """Reads an object, and writes another."""

    address: TierAddress
    key: str

    def run(self) -> object:
        objects = self.address.open()
        data = objects.get(self.key)
        objects.put("copy", data + data)
        return len(data)


@pytest.fixture
def address(tmp_path: Path) -> TierAddress:
    found = TierAddress(f"file:{tmp_path}/bucket")
    with closing(open_object_store(found.url)) as objects:
        objects.put("thing", b"0123456789")
    return found


def test_an_outcome_tells_what_its_task_alone_fetched(address: TierAddress) -> None:
    packed = pack_task(Fetch(address, "thing"))
    run_packed(packed)
    assert unpack_outcome(run_packed(packed)) == (10, StoreCount(2, 10, 20))


def test_a_task_that_failed_on_purpose_tells_its_requests_too(address: TierAddress) -> None:
    outcome, count = unpack_outcome(run_packed(pack_task(Fetch(address, "missing"))))
    assert isinstance(outcome, TaskFailure)
    assert count == StoreCount(requests=1)


def test_a_task_of_another_version_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(varve, "__version__", "0.0.9")
        packed = pack_task(Fetch(TierAddress("file:/nowhere"), "thing"))[:-9]  # not to be unpickled
    with pytest.raises(VersionMismatch, match=r"executor has varve .*, the driver 0\.0\.9"):
        run_packed(packed)


def test_code_that_differs_under_one_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack_task(NotFound("as a task, whose class the executor lacks"))  # type: ignore[arg-type]  # any object
    monkeypatch.delattr("varve.foundation.errors.NotFound")
    with pytest.raises(VersionMismatch, match="their code differs"):
        run_packed(packed)
