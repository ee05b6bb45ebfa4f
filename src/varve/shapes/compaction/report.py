"""Reports of compactions: counts of entries, stored beside the log.

Layout     metadata/compactions.json: {"version": 1, "reports": [...]}, oldest first, a limited
           number. docs/reference/formats/shape-compaction.md
Invariant  a balance that passes `check` loses no entry without a reason, and no key and no control
           message at all.
Crash      a report is durable before its log replaces the old one; one whose log the manifest never
           named was not carried out.
"""

import logging
import posixpath
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from varve.disk import FileSystem, JsonDocument
from varve.foundation.errors import Corrupt, Unbalanced
from varve.shapes.offset import ShapeOffset
from varve.shapes.settings import CompactionSettings
from varve.shapes.storage.layout import metadata_directory

logger = logging.getLogger(__name__)

ENTRIES_OF_KEY_MAX = 3
"""At most a delete, an insert and an update of a key remain."""


@dataclass(slots=True)
class Balance:
    """Counts of entries of a compaction, and the bytes of the log files.

    `merged` updates were folded into a later one; `superseded` entries precede an insert or delete
    of their key. `rows` counts the keys that have a row at the end. `inserts`, `updates`, `deletes`
    and `controls` are the remaining entries.
    """

    entries_in: int = 0
    bytes_in: int = 0
    controls_in: int = 0
    merged: int = 0
    superseded: int = 0
    keys: int = 0
    rows: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    controls: int = 0
    entries_out: int = 0
    bytes_out: int = 0

    @property
    def removed_ratio(self) -> float:
        """The fraction of the entries that is removed."""
        return (self.merged + self.superseded) / self.entries_in if self.entries_in else 0.0

    @property
    def entries_left(self) -> int:
        """The number of entries that remain."""
        return self.entries_in - self.merged - self.superseded

    def check(self, directory: str) -> None:
        """Raises Unbalanced, with the directory, unless the counts add up."""
        remaining = self.inserts + self.updates + self.deletes + self.controls
        rules = (
            self.entries_out == self.entries_left,
            self.entries_out == remaining,
            self.controls_in == self.controls,
            self.keys <= self.entries_out - self.controls <= ENTRIES_OF_KEY_MAX * self.keys,
            self.keys - self.rows <= self.deletes,
            self.entries_out == 0 or self.bytes_out > 0,
        )
        if not all(rules):
            raise Unbalanced(
                f"{directory}: the compaction does not add up, nothing was changed: {asdict(self)}"
            )


NAME: Final = "compactions.json"
_DOCUMENT: Final = JsonDocument(version=1, version_name="version", max_bytes=64 << 20, indent=None)


class CompactionOutcome(StrEnum):
    """How an attempt to compact ended."""

    DONE = "done"
    NOTHING = "nothing"
    """No chunk is old enough."""
    NOT_WORTH = "not worth"
    """Too few of the entries would be removed."""


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """An attempt to compact one shape; `boundary` is None when there was nothing to compact."""

    handle: str
    started_ms: int
    outcome: CompactionOutcome
    boundary: ShapeOffset | None
    position: int
    suffix: str | None
    snapshot_rows: int
    balance: Balance

    @property
    def client_entries(self) -> int:
        """Entries that a new client reads up to the boundary: snapshot and remaining log."""
        return self.snapshot_rows + self.balance.entries_left

    @property
    def rows_min(self) -> int:
        """A lower bound of the shape's rows: those of the log, and those only in the snapshot."""
        return self.balance.rows + max(0, self.snapshot_rows - self.balance.keys)

    def needs_new_snapshot(self, settings: CompactionSettings) -> bool:
        """Whether deleted rows outweigh the present ones, so that only a new snapshot helps.

        Compaction cannot remove deletes, nor deleted rows from the snapshot: clients may hold these
        rows, and new clients read the snapshot.
        """
        limit = settings.resnapshot_factor * self.rows_min + settings.resnapshot_entries
        return self.outcome is not CompactionOutcome.NOTHING and self.client_entries > limit

    def to_json(self) -> dict[str, Any]:
        return {
            "handle": self.handle,
            "started_ms": self.started_ms,
            "outcome": str(self.outcome),
            "boundary": None if self.boundary is None else str(self.boundary),
            "suffix": self.suffix,
            "snapshot_rows": self.snapshot_rows,
            "balance": asdict(self.balance),
        }


def record_report(
    fs: FileSystem, directory: str, report: CompactionReport, *, reports_max: int
) -> None:
    """Adds a report durably and removes the oldest; damaged reports are replaced."""
    try:
        earlier = read_reports(fs, directory)
    except Corrupt as error:
        logger.warning("damaged reports of compactions are replaced", extra={"reason": str(error)})
        earlier = []
    reports = [*earlier, report.to_json()][-reports_max:]
    _DOCUMENT.write(fs, _path(directory), {"reports": reports})


def read_reports(fs: FileSystem, directory: str) -> list[dict[str, Any]]:
    """The reports kept, oldest first; raises Corrupt."""
    path = _path(directory)
    document = _DOCUMENT.read(fs, path)
    reports = [] if document is None else document.get("reports")
    if not isinstance(reports, list) or not all(isinstance(report, dict) for report in reports):
        raise Corrupt(f"{path} holds no reports of compactions")
    return reports


def _path(directory: str) -> str:
    return posixpath.join(metadata_directory(directory), NAME)
