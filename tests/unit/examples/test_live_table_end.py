"""The example of a live table leaves no server behind, however it is ended."""

import os
import signal
import threading
from pathlib import Path
from types import ModuleType
from typing import Self

import pytest

from examples.shapes import live_table


class Courier:
    def __init__(self, bootstrap: str, *, rest: int, step: int) -> None:
        pass

    def change(self) -> None:
        pass

    def flush(self) -> None:
        pass


class Table:
    bootstrap = page_url = ""
    is_ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        Table.is_ended = True


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "node_modules").mkdir()
    for name, one in (("HERE", tmp_path), ("LiveTable", Table), ("Courier", Courier)):
        monkeypatch.setattr(live_table, name, one)
    return live_table


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_servers_too(example: ModuleType, number: signal.Signals) -> None:
    Table.is_ended = False
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        threading.Timer(0.2, os.kill, [os.getpid(), number]).start()
        example.main()
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert Table.is_ended
