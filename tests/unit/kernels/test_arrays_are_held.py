"""Arrays that a kernel makes are held for as long as their addresses are used."""

import ast
from pathlib import Path

import numpy as np
import pytest
from numba import njit

import varve
from varve.kernels.memory import address_of, keep_alive, load_u64_at, store_u64_at

_SOURCES = sorted(Path(varve.__file__).parent.glob("**/kernels/*.py"))
_MAKERS = {"empty", "zeros", "ones", "full", "empty_like", "zeros_like"}
_ADDRESSES = {"address_of"}


def _name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _pairs(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    """Targets and values, one by one."""
    target = node.targets[0]
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        return list(zip(target.elts, node.value.elts, strict=True))
    return [(target, node.value)]


def find_arrays_let_go(function: ast.FunctionDef) -> set[str]:
    """Arrays made here whose addresses are taken, and which are neither kept nor given back."""
    made, taken, held = set(), set(), set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target, value in _pairs(node):
                if isinstance(value, ast.Call) and _name(value) in _MAKERS:
                    made |= {one.id for one in ast.walk(target) if isinstance(one, ast.Name)}
        elif isinstance(node, ast.Call) and _name(node) in _ADDRESSES:
            taken |= {one.id for one in node.args if isinstance(one, ast.Name)}
        elif isinstance(node, ast.Call) and _name(node) == "keep_alive":
            held |= {one.id for one in node.args if isinstance(one, ast.Name)}
        elif isinstance(node, ast.Return) and node.value is not None:
            held |= {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
    return made & taken - held


@pytest.mark.parametrize("path", _SOURCES, ids=lambda path: path.stem)
def test_every_array_used_by_its_address_is_held(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert {one.name: find_arrays_let_go(one) for one in functions if find_arrays_let_go(one)} == {}


def test_an_array_that_is_let_go_is_found() -> None:
    lines = (
        "def f():",
        "a, b = np.empty(3), np.zeros(3)",
        "x = address_of(a) + address_of(b)",
        "keep_alive(b)",
    )
    text = "\n    ".join(lines)
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    assert find_arrays_let_go(function) == {"a"}


def test_memory_that_is_kept_is_given_to_nobody_else() -> None:
    @njit(error_model="numpy")
    def write(size: int) -> tuple[int, int]:
        first = np.empty(size, np.int64)
        place = address_of(first)
        second = np.empty(size, np.int64)
        store_u64_at(place, np.uint64(7))
        store_u64_at(address_of(second), np.uint64(9))
        found = load_u64_at(place)
        keep_alive(first)
        keep_alive(second)
        return int(found), address_of(second) - place

    for size in (2, 20, 200, 2000):
        found, distance = write(size)
        assert found == 7
        assert distance != 0
