"""RocksDB as an engine: one budget of memory, and a quiet directory."""

import errno
import os
import random
import threading
from pathlib import Path

import pytest

from varve.foundation.errors import Corrupt, StoreError, Unavailable
from varve.rocks import database as rocks_database
from varve.rocks.database import RocksDatabase, RocksDatabases

BUDGET_BYTES = 4 << 20


def test_databases_stay_within_one_budget_and_flush_by_it(tmp_path: Path) -> None:
    """Twelve MiB through three databases, none of which would fill its own buffer of 16 MiB.

    Writes go on while a flush is on its way, so the budget is passed for a while on a busy disk:
    what is looked at is that it holds again, though nobody asked for a flush.
    """
    engine = RocksDatabases(memory_bytes=BUDGET_BYTES)
    databases = [engine.open(str(tmp_path / str(number))) for number in range(3)]
    source = random.Random(1)
    for _ in range(20):
        for database in databases:
            database.write([(source.randbytes(16), source.randbytes(400)) for _ in range(500)])
    patience = threading.Event()
    for _ in range(3_000):
        if engine.budget.in_use_bytes() < 2 * BUDGET_BYTES:
            break
        patience.wait(0.01)
    assert engine.budget.in_use_bytes() < 2 * BUDGET_BYTES
    assert sum(database.size() for database in databases) > 4 * BUDGET_BYTES // 2
    for database in databases:
        database.close()
    assert engine.budget.in_use_bytes() < BUDGET_BYTES


def test_databases_that_rest_have_small_filters(tmp_path: Path) -> None:
    """The first four may fill their buffers of 16 MiB within the budget, the others may not."""
    engine = RocksDatabases()
    used = [engine.budget.in_use_bytes()]
    databases: list[RocksDatabase] = []
    for count in (4, 20):
        while len(databases) < count:
            databases.append(engine.open(str(tmp_path / str(len(databases)))))
        used.append(engine.budget.in_use_bytes())
    first, later = (used[1] - used[0]) / 4, (used[2] - used[1]) / 16
    assert 300 << 10 < first < 600 << 10
    assert later < 280 << 10
    for database in databases:
        database.close()
    with_room = engine.open(str(tmp_path / "0"))
    assert engine.budget.in_use_bytes() > 300 << 10
    with_room.close()


def test_no_logs_pile_up_over_openings(tmp_path: Path) -> None:
    engine = RocksDatabases(memory_bytes=BUDGET_BYTES)
    for number in range(4):
        database = engine.open(str(tmp_path))
        database.write([(bytes([number]), b"v")])
        database.close()
    names = [path.name for path in tmp_path.iterdir()]
    assert len([name for name in names if name.startswith("LOG")]) == 1
    assert len([name for name in names if name.startswith("OPTIONS")]) <= 2


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EACCES, Unavailable), (errno.EMFILE, Unavailable), (errno.ENOTDIR, Corrupt)],
)
def test_a_database_that_one_may_not_read_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StoreError]
) -> None:
    def refuse(path: str) -> list[str]:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(kind) as reported:
        RocksDatabases().open(str(tmp_path))
    assert type(reported.value) is kind


@pytest.mark.parametrize("name", ["CURRENT", "LOCK"])
def test_a_file_that_one_may_not_read_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def refuse(*options: object, **named: object) -> None:
        raise RuntimeError(f"IO error: While open a file: {tmp_path}/{name}: Permission denied")

    monkeypatch.setattr(rocks_database, "Rdict", refuse)
    with pytest.raises(Unavailable, match="repair the disk or its permissions") as reported:
        RocksDatabases().open(str(tmp_path))
    assert type(reported.value) is Unavailable
