"""Caching of compiled kernels, and warming."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import varve
from varve.kernels import batch_scan, crc
from varve.kernels import compile as compilation
from varve.kernels.__main__ import find_kernel_modules, warm_all

PACKAGE = Path(varve.__file__).parent
KERNEL_MODULES = [
    path
    for path in sorted(PACKAGE.glob(f"**/{compilation.KERNEL_DIRECTORY}/*.py"))
    if path.stem not in ("__init__", "__main__")
]


def _stamp_in_use(function: Any) -> object:
    return function._cache._cache_file._source_stamp


def test_cache_entry_depends_on_every_file_a_kernel_is_made_of() -> None:
    names = {path.stem for path in compilation.kernel_sources(Path(batch_scan.__file__))}
    assert names == {
        *("batch_layout", "batch_scan", "compile", "crc", "memory", "record_parse", "varint"),
    }
    assert _stamp_in_use(batch_scan.scan_batches) == compilation._stamp(Path(batch_scan.__file__))


@pytest.mark.parametrize(
    "line",
    [
        "from varve.kernels.inner import x",
        "from varve.kernels.inner import (\n    x,\n)",
        "from varve.kernels import inner",
        "from varve.kernels import inner as other",
        "import varve.kernels.inner",
        "import varve.kernels.inner as other",
        "from .inner import x",
        "from . import inner",
        "from ..kernels.inner import x",
        "if True:\n    from varve.kernels.inner import x",
        "def late():\n    from varve.kernels import inner",
        "try:\n    import os, varve.kernels.inner\nfinally:\n    pass",
    ],
)
def test_every_form_of_import_makes_machine_code_stale(tmp_path: Path, line: str) -> None:
    kernels = tmp_path / "varve" / "kernels"
    kernels.mkdir(parents=True)
    (kernels / "inner.py").write_text("x = 1\n")
    (kernels / "between.py").write_text(f"{line}\n")
    outer = kernels / "outer.py"
    outer.write_text("from varve.kernels.between import x\n")
    before = compilation._stamp(outer)
    (kernels / "inner.py").write_text("x = 100\n")
    compilation._stamp.cache_clear()
    assert compilation._stamp(outer) != before


def test_kernels_of_another_package_depend_on_those_below(tmp_path: Path) -> None:
    below, above = tmp_path / "varve" / "kernels", tmp_path / "varve" / "shapes" / "kernels"
    below.mkdir(parents=True)
    above.mkdir(parents=True)
    (below / "memory.py").write_text("x = 1\n")
    (above / "rows.py").write_text("from varve.kernels.memory import x\n")
    (above / "fold.py").write_text("from varve.shapes.kernels.rows import x\n")
    names = {path.name for path in compilation.kernel_sources(above / "fold.py")}
    assert names == {"fold.py", "rows.py", "memory.py"}


def test_modules_that_import_each_other_are_followed_once(tmp_path: Path) -> None:
    kernels = tmp_path / "varve" / "kernels"
    kernels.mkdir(parents=True)
    (kernels / "a.py").write_text("from varve.kernels import a\n")
    assert compilation.kernel_sources(kernels / "a.py") == {kernels / "a.py"}


@pytest.mark.parametrize("path", KERNEL_MODULES, ids=lambda path: path.stem)
def test_kernels_are_made_of_kernel_modules_only(path: Path) -> None:
    """A constant from elsewhere could change without the machine code noticing."""
    for name in compilation.imported_modules(path):
        assert compilation.KERNEL_DIRECTORY in name.split("."), name


def test_warming_compiles_every_kernel() -> None:
    warmed = set(warm_all())
    assert {"varve.kernels.batch_scan", "varve.kernels.crc", "varve.kernels.hashes"} <= warmed
    assert {"varve.shapes.kernels.row_texts", "varve.dedup.kernels.time_spans"} <= warmed
    assert len(batch_scan.inspect_batch.signatures) >= 2  # type: ignore[attr-defined]  # numba's
    assert len(crc.crc32c.signatures) >= 2  # type: ignore[attr-defined]  # numba's


def test_the_modules_that_take_longest_come_first() -> None:
    names = find_kernel_modules()
    assert names[0] == "varve.shapes.kernels.row_messages"
    assert {f"varve.kernels.{path.stem}" for path in (PACKAGE / "kernels").glob("[a-z]*.py")} <= {
        *names
    }


def test_the_program_compiles_in_processes_of_its_own() -> None:
    command = [sys.executable, "-m", "varve.kernels"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"compiled the kernels of \d+ modules in \d+ s\n", done.stdout)
