"""A cold tier in a directory that fails: the log directory and the other topics go on."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import varve
from varve.foundation.errors import StoreDenied

TIERED = {"remote.storage.enable": True, "segment.bytes": 1_000, "retention.ms": -1}


class ReadOnly:
    """Makes what is below a path read-only, as a mount would: also for root."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = str(path)
        self.is_on = False
        for name in ("unlink", "link", "replace", "mkdir", "rmdir"):
            monkeypatch.setattr(os, name, self._guard(getattr(os, name), lambda *given: True))
        monkeypatch.setattr(os, "open", self._guard(os.open, _is_for_writing))

    def _guard(self, real: Callable[..., Any], is_write: Callable[..., bool]) -> Callable[..., Any]:
        def guarded(path: Any, *given: Any, **named: Any) -> Any:
            if self.is_on and str(path).startswith(self._path) and is_write(path, *given):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return real(path, *given, **named)

        return guarded


def _is_for_writing(path: Any, flags: int, *mode: int) -> bool:
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReadOnly:
    return ReadOnly(tmp_path / "data.cold", monkeypatch)


@pytest.fixture
def store(tmp_path: Path, remote: ReadOnly) -> Iterator[varve.Store]:
    with varve.open(tmp_path / "data", maintain=False) as opened:
        opened.create_topic("t", settings=TIERED)
        opened.create_topic("other")
        fill(opened)
        opened.run_once()
        yield opened
        remote.is_on = False


def fill(store: varve.Store) -> None:
    for number in range(40):
        store.topic("t").append(value=b"value-%d" % number * 5)


def test_a_tier_that_turns_read_only_fails_the_copy_alone(
    store: varve.Store, remote: ReadOnly
) -> None:
    remote.is_on = True
    fill(store)
    store.run_once()
    health = store.health()
    assert not health.offline
    assert "Read-only file system; mount it for writing" in "".join(map(str, health.tier.values()))
    store.topic("other").append(value=b"goes on")
    assert len(list(store.topic("t").read(partition=0))) == 80
    remote.is_on = False
    store.run_once(10**15)
    assert store.health().tier == {}


def test_a_topic_that_cannot_leave_keeps_no_store_from_opening(
    tmp_path: Path, store: varve.Store, remote: ReadOnly
) -> None:
    remote.is_on = True
    with pytest.raises(StoreDenied, match="Read-only file system"):
        store.delete_topic("t")
    store.abandon()
    with varve.open(tmp_path / "data", maintain=False) as again:
        again.topic("other").append(value=b"goes on")
