"""What a restore did, and the mark of it that stays in the partition's directory.

Layout     `varve-restored.json`: cluster, manifest version and its commit, the offset that was
           asked for. Varve's own; Kafka passes over it. docs/tiering-restore.md
"""

import json
from dataclasses import asdict, dataclass
from typing import Final

from varve.commit_log.names import OWN_PREFIX
from varve.tiering.cold_keys import ColdPartition
from varve.tiering.manifest import Manifest

RESTORED_FILE: Final = f"{OWN_PREFIX}restored.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreMark:
    """Which state of the cold tier a directory was made from; equal marks give equal bytes."""

    cluster: str
    topic_id: str
    version: int
    commit: str
    until_offset: int | None

    def encode(self) -> bytes:
        return (json.dumps(asdict(self)) + "\n").encode()


def mark_of(manifest: Manifest, until_offset: int | None) -> RestoreMark:
    return RestoreMark(
        cluster=manifest.cluster,
        topic_id=manifest.topic_id,
        version=manifest.version,
        commit=manifest.commit_id,
        until_offset=until_offset,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreReport:
    """What a restore made.

    `end_offset` is exclusive. `reused_bytes` were there from an attempt that was cut short;
    `was_there` says that an earlier run had finished and nothing was done.
    """

    home: ColdPartition
    directory: str
    manifest_version: int
    manifest_ms: int
    segment_count: int
    log_start_offset: int
    end_offset: int
    fetched_bytes: int = 0
    reused_bytes: int = 0
    was_there: bool = False
