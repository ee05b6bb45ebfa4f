"""What works without the packages of the extra `spark`, and what the rest says."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from varve.foundation.extras import _SPARK_PACKAGES, describe_missing_extra

_PROGRAM = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())

import varve
import varve.spark
from click.testing import CliRunner
from varve.cli.main import app
from varve.testing import KafkaKit

def run(*arguments):
    result = CliRunner().invoke(app, arguments)
    print(result.exit_code, result.stderr.strip() if result.exit_code else "")

with varve.open("data") as store:
    store.create_topic("orders").append("3 apples", key="alice")
with KafkaKit() as kit, varve.connect(kit.bootstrap) as cluster:
    cluster.create_topic("orders").append("4 pears")
run("consume", "orders", "-d", "data")
run("dedup", "run", "orders", "--to", "once", "--by", "key", "--window", "10m", "-d", "data")
run("topic", "alter", "orders", "-d", "data", "--set", "remote.storage.enable=true")
run("tier", "copy", "orders", "-d", "data", "--store", "file:bucket", "--roll")
run("snapshot", "list", "file:snapshots")
run("job", "verify", "orders", "-d", "data")
try:
    varve.spark.get_session()
except ModuleNotFoundError as error:
    print(error)
"""


def test_an_extra_is_named_where_it_is_missing_and_needed_for_spark_alone(tmp_path: Path) -> None:
    program = _PROGRAM.format(packages=set(_SPARK_PACKAGES))
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = result.stdout.splitlines()
    assert [line[:2] for line in lines[:6]] == ["0 ", "0 ", "0 ", "0 ", "1 ", "1 "]
    for line in lines[4:]:
        assert line.endswith("is not installed: run `pip install '.[spark]'` in the clone of varve")


def test_the_packages_are_those_of_the_extra() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    for package in _SPARK_PACKAGES:
        assert any(line.startswith(package) for line in project["optional-dependencies"]["spark"])
        assert not any(line.startswith(package) for line in project["dependencies"])
    assert describe_missing_extra(ModuleNotFoundError(name="numpyy")) is None
