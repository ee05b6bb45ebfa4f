"""The golden directories as tests read them: manifests, dumps by file, recovery cases."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

GOLDENS = Path(__file__).parents[2] / "fixtures" / "kafka"
NAMES = ("clean", "unclean")

_FIELD = re.compile(r"(\w+): (\S+)")
_DUMPING = "Dumping "


@dataclass(frozen=True, slots=True)
class GoldenPartition:
    """One partition of a golden directory."""

    golden: str
    name: str

    def __str__(self) -> str:
        return f"{self.golden}/{self.name}"

    @property
    def directory(self) -> Path:
        return GOLDENS / self.golden / "data" / self.name

    @property
    def manifest(self) -> dict[str, Any]:
        """What Apache Kafka's consumer and admin client saw."""
        partition: dict[str, Any] = manifest_of(self.golden)["partitions"][self.name]
        return partition

    def files(self, suffix: str) -> list[Path]:
        return sorted(path for path in self.directory.iterdir() if path.suffix == suffix)

    def dump_of(self, path: Path) -> list[str]:
        """The lines Apache Kafka's dump tool printed for a file; empty if it printed none."""
        return _dump_by_file(self.golden, self.name).get(path.name, [])


def partitions() -> list[GoldenPartition]:
    """Every partition of every golden directory."""
    return [
        GoldenPartition(golden, name)
        for golden in NAMES
        for name in sorted(manifest_of(golden)["partitions"])
    ]


@lru_cache(maxsize=len(NAMES))
def manifest_of(golden: str) -> dict[str, Any]:
    """The manifest of a golden directory."""
    manifest: dict[str, Any] = json.loads((GOLDENS / golden / "manifest.json").read_text())
    return manifest


@lru_cache(maxsize=1)
def recovery_cases() -> list[dict[str, Any]]:
    """What Apache Kafka's loader made of the partitions, whole and damaged."""
    cases: list[dict[str, Any]] = json.loads((GOLDENS / "recovery.json").read_text())
    return cases


def latest_timestamp(golden: str) -> int:
    """A clock reading at which no producer of the golden directory has expired."""
    return max(
        int(state["last_timestamp"])
        for partition in manifest_of(golden)["partitions"].values()
        for state in partition["producers"]
    )


def fields(line: str) -> dict[str, str]:
    """The `name: value` pairs of a dump line, up to the payload."""
    return dict(_FIELD.findall(line))


@lru_cache(maxsize=32)
def _dump_by_file(golden: str, partition: str) -> dict[str, list[str]]:
    text = (GOLDENS / golden / "dump" / f"{partition}.txt").read_text()
    # A record's payload may hold any line separator but a plain newline.
    return dict(_sections(text.split("\n")))


def _sections(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    name: str | None = None
    section: list[str] = []
    for line in lines:
        if line.startswith(_DUMPING):
            if name is not None:
                yield name, section
            name, section = line.removeprefix(_DUMPING).rsplit("/", maxsplit=1)[-1], []
        elif line:
            section.append(line)
    if name is not None:
        yield name, section
