"""`varve dump` prints what Apache Kafka's own dump tool printed of a real broker's files."""

import io

import pytest

from tests.conformance.tools.golden_reader import GOLDENS, GoldenPartition, partitions
from varve.cli.dump.files import dump_paths
from varve.cli.dump.records import DumpOptions
from varve.cli.dump.text import TextFormat
from varve.disk import RealFileSystem

PRINTED = ("compacted-0", "purged-0", "transactions-0", "trimmed-0")
DUMPED = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")

every_partition = pytest.mark.parametrize("partition", partitions(), ids=str)


@every_partition
def test_standard_output_is_that_of_kafkas_tool(partition: GoldenPartition) -> None:
    output, _, _ = _dump(partition)
    expected = _golden(partition, ".txt")
    if str(partition) == "unclean/preallocated-0":
        # Kafka's tool ends with an exception at the zeros of a preallocated file. Ours says how
        # many bytes they are and goes on with the next file.
        assert output.startswith(expected)
        assert output.removeprefix(expected).startswith("Found ")
        return
    assert output == expected


@every_partition
def test_complaints_are_those_of_kafkas_tool(partition: GoldenPartition) -> None:
    _, errors, is_whole = _dump(partition)
    if str(partition) == "unclean/preallocated-0":
        assert not is_whole
        assert "00000000000000000100.log: position" in errors
        return
    assert is_whole
    # Kafka's tool lists the files in the order of a hash table, ours as they come.
    assert _sections(errors) == _sections(_golden(partition, ".errors.txt"))


def _dump(partition: GoldenPartition) -> tuple[str, str, bool]:
    names = sorted(path.name for path in partition.directory.iterdir() if path.suffix in DUMPED)
    prefix = f"{partition.directory.parent}/"
    is_printed = partition.name in PRINTED
    out, errors = io.StringIO(), io.StringIO()
    is_whole = dump_paths(
        RealFileSystem(),
        [f"{partition.directory}/{name}" for name in names],
        DumpOptions(has_records=True, has_values=is_printed),
        TextFormat(out, errors),
    )
    assert "Ignoring" not in errors.getvalue()
    return out.getvalue().replace(prefix, ""), errors.getvalue().replace(prefix, ""), is_whole


def _golden(partition: GoldenPartition, suffix: str) -> str:
    path = GOLDENS / partition.golden / "dump" / f"{partition.name}{suffix}"
    return path.read_text() if path.exists() else ""


def _sections(text: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    heading = ""
    for line in text.splitlines():
        if not line.startswith("  "):
            heading = line
        sections.setdefault(heading, []).append(line)
    return sections
