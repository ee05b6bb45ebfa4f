"""Apache Kafka's DumpLogSegments over the files of one partition."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.tools.toolchain import Toolchain

DUMP_TOOL = "kafka.tools.DumpLogSegments"
DUMPED_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
COMPLAINTS = (
    "Mismatches in",
    "Found timestamp mismatch",
    "Found out of order timestamp",
    "indexed offsets are not found",
    "invalid bytes at the end",
    "isvalid: false",
    "Exception",
    "corrupt",
)


@dataclass(frozen=True, slots=True)
class Dump:
    """What the tool printed; paths are relative to the partition's parent directory."""

    output: str
    errors: str
    status: int

    def complaints(self) -> list[str]:
        """Lines that name a defect. Offset gaps are no defect: compaction leaves them."""
        lines = (self.output + self.errors).splitlines()
        found = [line for line in lines if any(complaint in line for complaint in COMPLAINTS)]
        return found if self.status == 0 else [*found, f"exit status {self.status}"]


def dump_partition(
    toolchain: Toolchain, partition: Path, *options: str, suffixes: Sequence[str] = DUMPED_SUFFIXES
) -> Dump:
    """Dumps every file of a partition directory, in name order."""
    names = sorted(path.name for path in partition.iterdir() if path.suffix in suffixes)
    files = ",".join(f"{partition.name}/{name}" for name in names)
    done = toolchain.run(DUMP_TOOL, "--files", files, *options, directory=partition.parent)
    errors = done.stderr.replace(f"{partition.parent.resolve()}/", "")
    return Dump(done.stdout, errors, done.returncode)
