"""Whatever happens, and in whatever order: who follows a shape ends with the topic's rows.

Clients read in the middle of everything, hold offsets over crashes and compactions, and begin anew
only when they are told to.

Carries S1 and S3.
"""

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from tests.support.memory_directory import memory_directory
from tests.support.rounds import machine_settings
from tests.support.shape_engine import Follower, Row, Stage
from varve.foundation.errors import NotFound
from varve.shapes.settings import CompactionSettings, EngineSettings
from varve.shapes.shape import DropReason

KEYS = st.sampled_from(["a", "b", "c", "d"])
ROWS = st.fixed_dictionaries(
    {"n": st.integers(0, 3)}, optional={"t": st.sampled_from(["x", "y"]), "u": st.booleans()}
)
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, ROWS),
    st.tuples(st.just("put"), KEYS, ROWS),
    st.tuples(st.just("put"), KEYS, ROWS),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("turn")),
    st.tuples(st.just("turn")),
    st.tuples(st.just("read"), st.integers(0, 4)),
    st.tuples(st.just("read"), st.integers(0, 4)),
    st.tuples(st.just("checkpoint")),
    st.tuples(st.just("crash")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("compact")),
    st.tuples(st.just("clean")),
    st.tuples(st.just("drop"), st.integers(0, 4)),
)
DAMAGE = st.tuples(st.just("damage"), st.integers(0, 1 << 32))
SHAPES: list[dict[str, Any]] = [
    {},
    {"where": "n > 1"},
    {"where": "t = 'x'", "replica": "full"},
    {"columns": "t"},
    {"where": "n = $1", "params": {1: "2"}, "columns": "n,u"},
]


def _expected(state: dict[str, Row], parameters: dict[str, Any]) -> dict[str, Row]:
    found = {}
    for key, row in state.items():
        where = parameters.get("where")
        is_in = {
            None: True,
            "n > 1": row["n"] > 1,
            "t = 'x'": row.get("t") == "x",
            "n = $1": row["n"] == 2,
        }[where]
        if is_in:
            columns = parameters.get("columns", "n,t,u").split(",")
            found[key] = {"key": key} | {name: row[name] for name in columns if name in row}
    return found


def _damage_file(path: Path, other: Path, random: Random) -> None:
    """Deletes, truncates, flips a bit of, overwrites with zeros, or swaps the file of a shape."""
    if not path.exists() or not other.exists():
        return
    data = path.read_bytes()
    start = random.randint(0, len(data))
    end = random.randint(start, len(data))
    match random.randrange(5):
        case 0:
            path.unlink()
        case 1:
            path.write_bytes(data[:start])
        case 2 if start < len(data):
            flipped = data[start] ^ 1 << random.randrange(8)
            path.write_bytes(data[:start] + bytes([flipped]) + data[start + 1 :])
        case 3:
            path.write_bytes(data[:start] + bytes(end - start) + data[end:])
        case 4 if path.parent.parent == other.parent.parent:
            path.write_bytes(other.read_bytes())
            other.write_bytes(data)


class _World:
    """A stage, what its topic holds, and one client for each shape."""

    def __init__(self, path: Path, partitions: int) -> None:
        self.stage = Stage(
            path,
            settings=EngineSettings(chunk_bytes=400, max_poll_records=3),
            compaction=CompactionSettings(keep_chunks=0, min_cleanable_ratio=0.0),
        )
        self.stage.store.create_topic(
            "t", partitions=partitions, settings={"cleanup.policy": "compact"}
        )
        self.state: dict[str, Row] = {}
        self.clients = [Follower(self.stage, "t", **parameters) for parameters in SHAPES]

    def do(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("put", key, row):
                self.stage.put("t", key, row)
                self.state[key] = row
            case ("delete", key):
                self.stage.put("t", key, None)
                self.state.pop(key, None)
            case ("turn",) if self.stage.engine.shapes():
                self.stage.engine.run_turn("t")
            case ("read", number):
                self.clients[number].step()
            case ("checkpoint",):
                self.stage.engine.checkpoint_now()
            case ("crash",):
                self.stage.crash()
            case ("restart",):
                self.stage.restart()
            case ("damage", seed):
                self._damage(Random(seed))
            case ("compact",):
                for shape in self.stage.engine.shapes():
                    if shape.is_snapshot_complete:
                        with suppress(NotFound):  # its files are damaged
                            self.stage.engine.compact(shape)
            case ("clean",):
                self.stage.store.clean("t", roll=True, at_once=True)
            case ("drop", number):
                handle = self.clients[number].handle
                found = None if handle is None else self.stage.engine.find(handle)
                if found is not None:
                    self.stage.engine.drop(found, DropReason.DELETED)

    def _damage(self, random: Random) -> None:
        """Closes the engine, or crashes it, and damages up to three files of its shapes."""
        engine = self.stage.engine
        random.choice([engine.close, engine.abandon])()
        root = self.stage.path / "shapes"
        files = [path for path in sorted(root.glob("??/??/*/*/*")) if path.is_file()]
        for path in random.choices(files, k=random.randint(1, 3)) if files else ():
            _damage_file(path, random.choice(files), random)
        self.stage.engine = self.stage._open()

    def check(self) -> None:
        for client, parameters in zip(self.clients, SHAPES, strict=True):
            assert client.catch_up() == _expected(self.state, parameters), parameters
            fresh = Follower(self.stage, "t", **parameters)
            assert fresh.catch_up() == _expected(self.state, parameters), parameters


@pytest.mark.parametrize("partitions", [1, 2])
@machine_settings(25)
@given(steps=st.lists(STEPS, max_size=40))
def test_every_client_ends_with_the_rows_of_the_topic(
    partitions: int, steps: list[tuple[Any, ...]]
) -> None:
    _follow(partitions, steps)


@machine_settings(15)
@given(steps=st.lists(STEPS | DAMAGE, max_size=60))
def test_so_it_does_if_files_of_shapes_are_damaged_between_restarts(
    steps: list[tuple[Any, ...]],
) -> None:
    _follow(1, steps)


def _follow(partitions: int, steps: list[tuple[Any, ...]]) -> None:
    note(f"{steps=}")
    with memory_directory() as path:
        world = _World(path, partitions)
        try:
            for step in steps:
                world.do(step)
            world.check()
        finally:
            world.stage.close()
