"""What is loaded when: pyspark by varve.spark alone, varve by the registration when it is used."""

import subprocess
import sys


def run(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    ).stdout.strip()


def test_no_module_of_jobs_loads_pyspark() -> None:
    program = """
import pkgutil, sys, importlib, varve.jobs
for found in pkgutil.walk_packages(varve.jobs.__path__, "varve.jobs."):
    importlib.import_module(found.name)
print("pyspark" in sys.modules, "varve.jobs.tasks" in sys.modules)
"""
    assert run(program) == "False True"


def test_spark_finds_the_format_without_loading_varve() -> None:
    program = """
import sys, pyspark_varve
print(pyspark_varve.DefaultSource.name(), "varve" in sys.modules, "numba" in sys.modules)
"""
    assert run(program) == "varve False False"
