"""Two copies of one log directory on one bucket: the second to copy is told, and harms nothing."""

import shutil
from pathlib import Path

import pytest

import varve
from tests.support.varve_command import run_varve as run


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
    run("tier", "copy", "-d", first, "--roll", "--store", bucket)
    shutil.copytree(first, second)
    return first, second


@pytest.mark.parametrize("others", [["x"], ["xxxxx", "y"], ["x", "y", "z"]])
def test_a_copy_of_a_directory_does_not_copy_over_the_first(
    twins: tuple[Path, Path], others: list[str]
) -> None:
    first, second = twins
    append(first, "a")
    run("tier", "copy", "-d", first, "--roll")
    append(second, *others)
    found = run("tier", "copy", "-d", second, "--roll", code=1)
    words = found.told
    assert "a copy of this log directory writes to the same object store" in words
    assert "nothing was copied" in found.stdout
    assert run("consume", "t", "--dir", first).stdout == "one\ntwo\na\n"
    run("tier", "copy", "-d", first)
    run("tier", "fsck", "--dir", first, "--deep")
