"""The plugin of pytest that comes with varve: its fixtures, and that it costs nothing unused."""

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
_WITHOUT = ("-p", "no:cacheprovider", "-p", "no:schemathesis")

_PROJECT = {
    "test_plain.py": """
        def test_plain():
            pass
    """,
    "test_fixtures.py": """
        import pytest

        @pytest.fixture
        def varve_settings():
            return {"log.segment.bytes": 10_000}

        def test_store(varve_store):
            topic = varve_store.store.create_topic("orders")
            topic.append_many((None, bytes(1_000)) for _ in range(30))
            assert topic.settings.segment_bytes == 10_000

        def test_kafka(varve_kafka):
            import varve

            with varve.connect(varve_kafka.bootstrap) as cluster:
                cluster.create_topic("orders").append("3 apples")
            assert [r.value for r in varve_kafka.store.topic("orders").read()] == [b"3 apples"]

        def test_damage_fails_the_test(varve_store):
            topic = varve_store.store.create_topic("orders")
            topic.append("3 apples")
            path = f"{varve_store.path}/orders-0/00000000000000000000.log"
            with varve_store.fs.open_writable(path) as file:
                file.write_at(70, b"damage")
    """,
}


def _run_pytest(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", *_WITHOUT]
    result = subprocess.run(
        [*command, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    return result.stdout + result.stderr


def _write_project(folder: Path) -> None:
    for name, text in _PROJECT.items():
        lines = [line.removeprefix(" " * 8) for line in text.strip("\n").splitlines()]
        (folder / name).write_text("\n".join(lines), encoding="utf-8")


def test_the_plugin_is_declared_and_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = project["entry-points"]["pytest11"]
    installed = {
        entry.name: entry.value
        for entry in importlib.metadata.distribution("varve").entry_points
        if entry.group == "pytest11"
    }
    assert declared == installed == {"varve": "varve.testing.pytest_plugin"}


def test_a_project_has_the_fixtures_without_naming_the_plugin(tmp_path: Path) -> None:
    _write_project(tmp_path)
    output = _run_pytest(tmp_path)
    assert "4 passed, 1 error" in output, output
    assert "ERROR test_fixtures.py::test_damage_fails_the_test" in output
    assert "varve.foundation.errors.Corrupt" in output


def test_the_plugin_can_be_turned_off(tmp_path: Path) -> None:
    _write_project(tmp_path)
    output = _run_pytest(tmp_path, "-p", "no:varve", "test_fixtures.py")
    assert "fixture 'varve_store' not found" in output, output


def test_a_start_of_pytest_imports_nothing_of_varve_but_the_plugin(tmp_path: Path) -> None:
    program = (
        f"import json, sys, pytest; pytest.main(['-q', *{_WITHOUT}]); "
        "print(json.dumps([name for name in sys.modules if name.partition('.')[0] in "
        "('varve', 'numpy', 'numba', 'pyspark', 'pyarrow', 'confluent_kafka')]))"
    )
    (tmp_path / "test_plain.py").write_text("def test_plain():\n    pass\n", encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(result.stdout.splitlines()[-1]))
    assert loaded == {
        "varve",
        "varve.errors",
        "varve.foundation",
        "varve.foundation.errors",
        "varve.testing",
        "varve.testing.pytest_plugin",
    }
