"""How many rows and keys seen lately are kept in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from varve.rocks.database import MemoryBudget
from varve.shapes.feed.row import RowKeys, row_key_prefix
from varve.shapes.feed.table import TopicTable
from varve.shapes.feed.table_store import TableState, TableStore
from varve.shapes.offset import ShapeOffset

_STATE = TableState(positions={0: 0}, next_tx=1, signature="plain key", topic_id="", caught_up_ms=1)


class _Store(TableStore):
    """Notes the keys that the disk is asked for."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.asked: list[str] = []

    def get_rows(self, keys: list[str]) -> list[bytes | None]:
        self.asked += keys
        return super().get_rows(keys)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[_Store]:
    created = _Store(str(tmp_path / "rows"))
    yield created
    created.close()


def _fill(table: TopicTable, rows: dict[str, bytes | None]) -> None:
    table.apply(rows, position=ShapeOffset(1, 0), byte_count=0)
    table.checkpoint(table.seal(_STATE))


def _find_asked(table: TopicTable, store: _Store, keys: list[str]) -> list[str]:
    store.asked.clear()
    table.find_rows(keys)
    return list(store.asked)


def test_of_a_checkpoint_the_last_rows_are_kept(store: _Store) -> None:
    table = TopicTable(store, recent_rows=4)
    rows: dict[str, bytes | None] = {f'"{number}"': b"{}" for number in range(20, 40)}
    _fill(table, rows)
    keys = list(rows)
    assert _find_asked(table, store, keys[-4:]) == []
    assert _find_asked(table, store, keys[:4]) == keys[:4]


def test_a_row_that_a_checkpoint_does_not_keep_is_not_known_as_it_was(store: _Store) -> None:
    table = TopicTable(store, recent_rows=4)
    _fill(table, {'"10"': b'{"n":1}'})
    rows: dict[str, bytes | None] = {f'"{number}"': b"{}" for number in range(10, 30)}
    _fill(table, rows)
    assert table.find_rows(['"10"']) == {'"10"': b"{}"}


def test_rows_that_are_kept_have_a_bound_in_bytes(store: _Store) -> None:
    table = TopicTable(store, recent_rows=1000, recent_bytes=300)
    rows: dict[str, bytes | None] = {
        f'"{number}"': b'{"text":"%s"}' % (b"x" * 89) for number in range(10, 30)
    }
    _fill(table, rows)
    keys = list(rows)
    asked = _find_asked(table, store, keys)
    assert 14 <= len(asked) < 20
    assert asked == keys[: len(asked)]
    # Those that were just read are kept in their place, within the same bound.
    assert len(_find_asked(table, store, keys)) >= 14


def test_keys_that_are_kept_have_a_bound_in_bytes() -> None:
    keys = RowKeys(row_key_prefix("t"))
    columns = [b'{"key":"%08d%s"}' % (number, b"x" * 100_000) for number in range(100)]
    first = keys.get(columns[0])
    assert keys.get(columns[0]) is first
    for item in columns:
        keys.get(item)
    again = keys.get(columns[0])
    assert again == first
    assert again is not first


def test_tables_share_the_memory_of_one_budget(tmp_path: Path) -> None:
    budget = MemoryBudget(16 << 20)
    stores = [TableStore(str(tmp_path / f"t{number}"), budget) for number in range(3)]
    before = budget.in_use_bytes()
    for store in stores:
        rows: dict[str, bytes | None] = {
            f'"k{number}"': b'{"n":"%s"}' % (b"x" * 1000) for number in range(1000)
        }
        store.fill([rows])
    assert before + (2 << 20) < budget.in_use_bytes() < 24 << 20
    for store in stores:
        store.close()
