"""The Python of README and docs passes mypy, as it would for a user; run by `make check`.

`whole_api.py`, a program that uses the whole API, is among the files that mypy checks strictly.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import varve

ROOT = Path(__file__).parents[1]
PACKAGE = Path(varve.__file__).parent
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_IMPORTS = """\
# mypy: disable-error-code="import-not-found,no-untyped-def,no-untyped-call,type-arg,misc"
# mypy: allow-untyped-decorators
# mypy: no-strict-optional, allow-redefinition-new, local-partial-types, no-warn-unused-ignores
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


def _check_types(folder: Path) -> list[str]:
    """The errors, with the options and the cache of the project's own check of types."""
    command = [sys.executable, "-m", "mypy", f"--config-file={ROOT / 'pyproject.toml'}"]
    command += [f"--cache-dir={ROOT / '.mypy_cache'}", "--no-error-summary", "."]
    environment = {**os.environ, "MYPYPATH": str(folder)}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert not result.stderr, result.stderr
    return [line for line in result.stdout.splitlines() if ": error:" in line]


def test_documented_programs_pass_a_users_type_check(tmp_path: Path) -> None:
    assert (PACKAGE / "py.typed").exists()
    modules = _pages()
    assert len(modules) > 15
    for name, text in modules.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(
        'import varve\n\nvarve.open("data").topic("orders").append(5)\n', encoding="utf-8"
    )
    errors = _check_types(tmp_path)
    planted = [line for line in errors if line.startswith("wrong.py:3")]
    assert errors == planted
    assert planted, "an error would be found"
