"""An archive holds what executors need, and is refused where it does not fit."""

import json
import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pyspark
import pytest

import varve
from varve.foundation.errors import InvalidRequest, NotFound, VersionMismatch
from varve.spark.package import (
    FOLDER,
    MANIFEST,
    build_package,
    check_archive,
    find_packages,
    with_package,
)

_LOOK = """
import sys
import varve, varve.spark.executor, varve.spark.data_source, varve.kernels.crc
from varve.kernels import batch_scan
print([sys.modules[name].__file__ for name in ("varve", "numpy", "pyarrow", "numba", "obstore")])
"""


def write_archive(path: Path, about: object) -> str:
    with tarfile.open(path, "w") as archive:
        data = json.dumps(about).encode()
        entry = tarfile.TarInfo(MANIFEST)
        entry.size = len(data)
        archive.addfile(entry, BytesIO(data))
    return str(path)


def fitting() -> dict[str, str]:
    return {
        "varve": varve.__version__,
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
    }


def test_a_bare_python_imports_all_from_what_is_unpacked(tmp_path: Path) -> None:
    made = build_package(str(tmp_path / "env.tar"))
    check_archive(made.path)
    home = tmp_path / FOLDER
    with tarfile.open(made.path) as archive:
        archive.extractall(home, filter="data")
    lib = Path(pyspark.__file__).parent / "python" / "lib"
    path = os.pathsep.join([str(home), *map(str, lib.glob("*.zip"))])
    found = subprocess.run(
        [os.path.realpath(sys.executable), "-c", _LOOK],
        env={"PYTHONPATH": path, "PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.count(f"{home}/") == 5
    assert "pyspark" not in dict(made.packages)


def test_what_an_extra_asks_for_is_shipped_and_other_extras_are_not() -> None:
    found = find_packages("varve", "spark")
    assert {"pyiceberg", "sqlalchemy", "pyarrow"} <= found.keys()
    assert not {"pyspark", "py4j", "pytest", "boto3"} & found.keys()


def test_a_package_that_is_required_and_not_there_is_named() -> None:
    with pytest.raises(NotFound, match="no-such-package"):
        find_packages("no-such-package")


def test_settings_of_spark_are_joined_with_those_given(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "env.tar", fitting())
    found = with_package({"varve.package": path, "spark.archives": "more.zip", "spark.x": "1"})
    assert found == {
        "spark.archives": f"{path}#varve-env,more.zip",
        "spark.executorEnv.PYTHONPATH": "varve-env",
        "spark.x": "1",
    }


@pytest.mark.parametrize("name", ["varve", "python"])
def test_an_archive_of_another_version_is_refused(tmp_path: Path, name: str) -> None:
    path = write_archive(tmp_path / "env.tar", {**fitting(), name: "0.0.9"})
    with pytest.raises(VersionMismatch, match=rf"{name} 0\.0\.9"):
        check_archive(path)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="varve job package"):
        check_archive(str(tmp_path / "none.tar"))
    (tmp_path / "text.tar").write_text("not a tar")
    with pytest.raises(InvalidRequest, match="not a `varve job package` archive"):
        check_archive(str(tmp_path / "text.tar"))
    with pytest.raises(InvalidRequest, match=r"\.tar\.gz"):
        build_package(str(tmp_path / "env.zip"))
