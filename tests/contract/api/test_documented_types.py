"""The Python of README and docs, and a program that uses the whole API, pass a user's mypy.

The packages are read as installed ones: their annotations hold because of `py.typed`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import varve

ROOT = Path(__file__).parents[3]
PACKAGE = Path(varve.__file__).parent
CACHE = ROOT / ".mypy_cache" / "documented"
"""Kept, because mypy reads pyspark, numpy and all of varve when it is empty."""

_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_PROGRAM = Path(__file__).with_name("whole_api.py")
_IMPORTS = """\
import itertools
import prometheus_client
import pytest
import varve
import varve.spark as vs
from pathlib import Path
from typing import Any
from pyspark.sql import DataFrame, SparkSession
from varve.testing import CrashMode, KafkaKit, VirtualStore
"""
_PRESUMED = {
    "spark": "SparkSession",
    "frame": "DataFrame",
    "location": "varve.TopicLocation",
    "data": "varve.TopicLocation",
    "store": "varve.Store",
    "topic": "varve.Topic",
    "load": "Any",
    "consume": "Any",
    "open_mirrored": "Any",
    "open_tape": "Any",
}
"""Names that pages use without a definition, and their types."""
_OTHER_PROGRAMS = ("airflow", "pendulum")
"""They are not installed here."""


def _pages() -> dict[str, str]:
    """A module for each page with Python: its blocks in order, after what every page presumes."""
    modules = {}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        blocks = _BLOCK.findall(page.read_text(encoding="utf-8"))
        if blocks and "decisions" not in page.parts and "formats" not in page.parts:
            name = re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix("")))
            modules[f"page_{name}"] = _complete("\n".join(blocks))
    return modules


def _complete(program: str) -> str:
    """The program after the imports and names that it presumes."""
    lines = [
        f"{name}: {kind}"
        for name, kind in _PRESUMED.items()
        if not re.search(rf"(^|[ ,]){name}\b[^=.\n]*=[^=]|\bas {name}\b", program, re.MULTILINE)
    ]
    return _IMPORTS + "\n".join(lines) + "\n\n" + program


def _check_types(folder: Path, *arguments: str) -> str:
    settings = folder / "mypy.ini"
    settings.write_text("[mypy]\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", f"--config-file={settings}", f"--cache-dir={CACHE}"]
    command += ["--follow-imports=silent", "--no-error-summary", "--hide-error-context"]
    environment = {**os.environ, "MYPYPATH": str(PACKAGE.parent)}
    result = subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return result.stdout + result.stderr


def test_documented_programs_pass_a_users_type_check(tmp_path: Path) -> None:
    assert (PACKAGE / "py.typed").exists()
    modules = _pages()
    assert len(modules) > 15
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    (tmp_path / "whole_api.py").write_text(_PROGRAM.read_text("utf-8"), encoding="utf-8")
    (tmp_path / "wrong.py").write_text(
        'import varve\nvarve.open("data").topic("orders").append(5)\n', encoding="utf-8"
    )
    # Pages leave out annotations, and the check for None that a program would have; the program
    # below is checked strictly.
    found = _check_types(
        tmp_path,
        "--check-untyped-defs",
        "--no-strict-optional",
        "--allow-redefinition-new",
        "--local-partial-types",
        ".",
    )
    errors = [
        line
        for line in found.splitlines()
        if ": error:" in line and not any(f'"{name}' in line for name in _OTHER_PROGRAMS)
    ]
    assert [line for line in errors if not line.startswith("wrong.py:2")] == [], found
    assert any(line.startswith("wrong.py:2") for line in errors), "an error would be found"


@pytest.mark.parametrize("program", [_PROGRAM])
def test_a_program_that_uses_the_whole_api_passes_strictly(tmp_path: Path, program: Path) -> None:
    assert _check_types(tmp_path, "--strict", str(program)) == ""
