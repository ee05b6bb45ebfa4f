"""The golden directories as tests read them: manifests and recovery cases."""

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

GOLDENS = Path(__file__).parents[2] / "fixtures" / "kafka"
NAMES = ("clean", "unclean")
INLINE_BYTES = 48


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


def fingerprint(data: bytes | None) -> str | None:
    """Bytes as a manifest names them: short values in hex, long ones by size and digest."""
    if data is None:
        return None
    if len(data) <= INLINE_BYTES:
        return f"hex:{data.hex()}"
    return f"sha256:{len(data)}:{hashlib.sha256(data).hexdigest()}"
