"""A table against a dict, under any sequence of changes, marks, checkpoints and looks."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.support.memory_directory import memory_directory
from tests.support.rounds import machine_settings
from varve.shapes.feed.table import TableView, TopicTable
from varve.shapes.feed.table_store import TableState, TableStore
from varve.shapes.offset import ShapeOffset

_STATE = TableState(positions={0: 0}, next_tx=1, signature="plain key", topic_id="", caught_up_ms=1)
_KEYS = st.sampled_from([f'"{number}"' for number in range(8)])
_ROWS = st.dictionaries(_KEYS, st.one_of(st.none(), st.integers(0, 10**6)), max_size=8)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), _ROWS),
        st.tuples(st.just("apply"), _ROWS),
        st.tuples(st.just("clear"), _ROWS),
        st.tuples(st.just("find"), st.lists(_KEYS, max_size=8)),
        st.tuples(st.just("find"), st.lists(_KEYS, max_size=8)),
        st.tuples(st.just("mark"), st.none()),
        st.tuples(st.just("checkpoint"), st.integers(0, 3)),
        st.tuples(st.just("view"), st.none()),
    ),
    max_size=40,
)
_Rows = dict[str, bytes | None]


class _Run:
    def __init__(self, path: str, recent_rows: int, recent_bytes: int) -> None:
        self._store = TableStore(path)
        self.table = TopicTable(self._store, recent_rows=recent_rows, recent_bytes=recent_bytes)
        self._rows: dict[str, bytes] = {}
        self._tx = 0
        self._marked: list[tuple[int, dict[str, bytes]]] = []
        self._durable: dict[str, bytes] = {}
        self._views: list[tuple[TableView, dict[str, bytes]]] = []

    def step(self, name: str, value: Any) -> None:
        match name:
            case "apply" | "clear":
                self._apply(value, is_cleared=name == "clear")
            case "find":
                found = self.table.find_rows(value)
                assert found == {key: self._rows.get(key) for key in value}
            case "mark":
                self._marked.append((self.table.seal(_STATE), dict(self._rows)))
            case "checkpoint" if self._marked:
                at = value % len(self._marked)
                mark, self._durable = self._marked[at]
                self.table.checkpoint(mark)
                del self._marked[: at + 1]
            case "view":
                self._views.append((self.table.view(), dict(self._rows)))

    def _apply(self, numbers: dict[str, int | None], *, is_cleared: bool) -> None:
        self._tx += 1
        told: _Rows = {key: None if n is None else b'{"n":%d}' % n for key, n in numbers.items()}
        self.table.apply(
            told, position=ShapeOffset(self._tx, 0), byte_count=0, is_cleared=is_cleared
        )
        if is_cleared:
            self._rows.clear()
        for key, text in told.items():
            self._rows.pop(key, None)
            if text is not None:
                self._rows[key] = text

    def finish(self, path: str) -> None:
        for view, rows in self._views:
            with view:
                assert _texts(view) == rows
        self.table.close()
        again = TopicTable(TableStore(path))
        with again.view() as view:
            assert _texts(view) == self._durable
        again.close()


def _texts(view: TableView) -> dict[str, bytes]:
    return {key: b'{"n":' + row["n"] + b"}" for key, row in view.rows()}


@machine_settings(60)
@given(steps=_STEPS, recent_rows=st.integers(1, 6), recent_bytes=st.integers(1, 60))
def test_a_table_has_the_rows_of_a_dict(
    steps: list[tuple[str, Any]], recent_rows: int, recent_bytes: int
) -> None:
    with memory_directory() as path:
        run = _Run(f"{path}/rows", recent_rows, recent_bytes)
        for name, value in steps:
            run.step(name, value)
        run.finish(f"{path}/rows")
