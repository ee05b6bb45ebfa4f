"""Two copies of one log directory on one bucket: the second to copy is told, and harms nothing."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import varve
from varve.cli.main import app


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def append(data: Path, *values: str) -> None:
    with varve.open(data, maintain=False) as store:
        for value in values:
            store.topic("t").append(value=value)


@pytest.fixture
def twins(tmp_path: Path) -> tuple[Path, Path]:
    """Two directories that begin alike, with one segment in the bucket of both."""
    first, second = tmp_path / "first", tmp_path / "second"
    with varve.open(first, maintain=False) as store:
        store.create_topic("t", settings={"remote.storage.enable": True})
    append(first, "one", "two")
    bucket = f"file:{tmp_path / 'bucket'}"
    assert run("tier", "copy", "-d", first, "--roll", "--store", bucket).exit_code == 0
    shutil.copytree(first, second)
    return first, second


@pytest.mark.parametrize("others", [["x"], ["xxxxx", "y"], ["x", "y", "z"]])
def test_a_copy_of_a_directory_does_not_copy_over_the_first(
    twins: tuple[Path, Path], others: list[str]
) -> None:
    first, second = twins
    append(first, "a")
    assert run("tier", "copy", "-d", first, "--roll").exit_code == 0
    append(second, *others)
    found = run("tier", "copy", "-d", second, "--roll")
    assert found.exit_code == 1
    words = " ".join(found.stderr.split())
    assert "a copy of this log directory writes to the same object store" in words
    assert "nothing was copied" in found.stdout
    assert run("consume", "t", "--dir", first).stdout == "one\ntwo\na\n"
    again = run("tier", "copy", "-d", first)
    assert again.exit_code == 0, again.stderr
    assert run("tier", "fsck", "--dir", first, "--deep").exit_code == 0
