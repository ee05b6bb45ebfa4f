"""What is loaded when: pyspark by varve.spark alone, varve by the registration when it is used.

One interpreter imports all of varve, the lightest first, and notes what is loaded after each step.
"""

import json
import subprocess
import sys
from typing import Any, Final

import pytest

_FORMAT: Final = """
import sys, pyspark_varve
print(pyspark_varve.DefaultSource.name(), "varve" in sys.modules, "numba" in sys.modules)
"""
_PROGRAM: Final = """
import importlib, json, pkgutil, sys

def are_loaded(*names):
    return {name: name in sys.modules for name in names}

seen = {}
import varve.spark as vs
seen["by the public module"] = are_loaded("pyspark", "numpy")
assert callable(vs.compact)
seen["by a function of jobs"] = are_loaded("pyspark")

import varve.jobs
for found in pkgutil.walk_packages(varve.jobs.__path__, "varve.jobs."):
    importlib.import_module(found.name)
seen["by all jobs"] = are_loaded("pyspark", "varve.jobs.tasks")
assert callable(vs.get_session)

import varve.spark.topic_query, varve.spark.deduplication.functions, varve.spark.runner
seen["not callable"] = [name for name in vs.__all__ if not callable(getattr(vs, name))]
print(json.dumps(seen))
"""


def _run(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    ).stdout.strip()


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(_run(_PROGRAM))
    return document


def test_no_module_of_jobs_loads_pyspark(seen: dict[str, Any]) -> None:
    assert seen["by all jobs"] == {"pyspark": False, "varve.jobs.tasks": True}


def test_spark_finds_the_format_without_loading_varve() -> None:
    assert _run(_FORMAT) == "varve False False"


def test_the_public_module_loads_nothing_before_a_function_is_used(seen: dict[str, Any]) -> None:
    assert seen["by the public module"] == {"pyspark": False, "numpy": False}
    assert seen["by a function of jobs"] == {"pyspark": False}


def test_functions_are_not_hidden_by_modules(seen: dict[str, Any]) -> None:
    assert seen["not callable"] == []
