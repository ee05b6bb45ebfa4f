"""What a compaction did, and the reports kept beside the log.

Layout     metadata/compactions.json: {"version": 1, "reports": [...]}, oldest first, so many at
           most. docs/formats/shape-compaction.md
Crash      a report is durable before the log it speaks of is put in place; one whose log the
           manifest never named was not carried out.
"""

import json
import logging
import posixpath
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from varve.disk import FileSystem, write_atomically
from varve.foundation.errors import Corrupt
from varve.shapes.compaction.balance import Balance
from varve.shapes.compaction.settings import CompactionSettings
from varve.shapes.offset import Offset
from varve.shapes.storage.layout import metadata_directory

logger = logging.getLogger(__name__)

VERSION: Final = 1
NAME: Final = "compactions.json"


class Outcome(StrEnum):
    """How an attempt to compact ended."""

    DONE = "done"
    NOTHING = "nothing"
    """No chunk is old enough."""
    NOT_WORTH = "not worth"
    """Too small a part of the entries would go."""


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """An attempt to compact one shape; without anything to compact there is no boundary."""

    handle: str
    started_ms: int
    outcome: Outcome
    boundary: Offset | None
    position: int
    suffix: str | None
    snapshot_rows: int
    balance: Balance

    @property
    def client_entries(self) -> int:
        """What a new client reads up to the boundary: the snapshot and what stayed of the log."""
        return self.snapshot_rows + self.balance.entries_left

    @property
    def rows_min(self) -> int:
        """So many rows the shape has at least: those of the log, and those that it never names."""
        return self.balance.rows + max(0, self.snapshot_rows - self.balance.keys)

    def is_to_be_made_anew(self, settings: CompactionSettings) -> bool:
        """Whether what is gone outweighs what is there, so that only a new snapshot helps.

        Deletes, and rows of the snapshot that were deleted, cannot leave a shape: readers of old
        may hold the rows, and new ones get the snapshot.
        """
        limit = settings.excess_factor * self.rows_min + settings.excess_entries
        return self.outcome is not Outcome.NOTHING and self.client_entries > limit

    def to_json(self) -> dict[str, Any]:
        return {
            "handle": self.handle,
            "started_ms": self.started_ms,
            "outcome": str(self.outcome),
            "boundary": None if self.boundary is None else str(self.boundary),
            "suffix": self.suffix,
            "snapshot_rows": self.snapshot_rows,
            "balance": self.balance.to_json(),
        }


def record_report(
    fs: FileSystem, directory: str, report: CompactionReport, *, reports_max: int
) -> None:
    """Adds a report, durably; the oldest make room. Reports that are damaged begin anew."""
    try:
        kept = read_reports(fs, directory)
    except Corrupt as error:
        logger.warning("reports of compactions begin anew", extra={"reason": str(error)})
        kept = []
    reports = [*kept, report.to_json()][-reports_max:]
    document = {"version": VERSION, "reports": reports}
    write_atomically(fs, _path(directory), json.dumps(document).encode() + b"\n")


def read_reports(fs: FileSystem, directory: str) -> list[dict[str, Any]]:
    """The reports kept, oldest first; raises Corrupt."""
    path = _path(directory)
    if not fs.exists(path):
        return []
    try:
        document = json.loads(fs.read(path))
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']!r}, known is {VERSION}")
        reports = document["reports"]
        if not all(isinstance(report, dict) for report in reports):
            raise ValueError("a report is no object")
        return list(reports)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"{path} holds no reports of compactions: {error!r:.200}") from None


def _path(directory: str) -> str:
    return posixpath.join(metadata_directory(directory), NAME)
