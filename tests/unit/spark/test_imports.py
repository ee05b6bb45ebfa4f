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


def test_the_public_module_loads_nothing_before_a_function_is_used() -> None:
    program = """
import sys, varve.spark as vs
before = "pyspark" in sys.modules, "numpy" in sys.modules
print(*before, callable(vs.compact), "pyspark" in sys.modules, callable(vs.get_session))
"""
    assert run(program) == "False False True False True"


def test_functions_are_not_hidden_by_modules() -> None:
    program = """
import varve.spark.topic_query, varve.spark.deduplication.functions, varve.spark.runner
import varve.spark as vs
print(all(callable(getattr(vs, name)) for name in vs.__all__))
"""
    assert run(program) == "True"
