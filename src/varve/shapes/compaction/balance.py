"""The account of a compaction: what went in, what stayed, what went and why.

Invariant  a balance that passes `check` loses no entry without a reason, and no key and no control
           message at all.
"""

from dataclasses import dataclass, fields

from varve.foundation.errors import Unbalanced

ENTRIES_OF_KEY_MAX = 3
"""Of one key there stay at most a delete, an insert and an update."""


@dataclass(slots=True)
class Balance:
    """Counts of entries, but for the bytes, which are those of the log files.

    `merged` updates went into a later one; `superseded` entries were made void by an insert or
    delete of their key. So many `rows` of the `keys` are there at the end. `inserts`, `updates`,
    `deletes` and `controls` are what stayed.
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
    def stale_share(self) -> float:
        """The part of all entries that went."""
        return (self.merged + self.superseded) / self.entries_in if self.entries_in else 0.0

    @property
    def entries_left(self) -> int:
        """What stays, or would stay if it was written."""
        return self.entries_in - self.merged - self.superseded

    def check(self, place: str) -> None:
        """Raises Unbalanced, naming the place, unless all adds up."""
        stayed = self.inserts + self.updates + self.deletes + self.controls
        rules = (
            self.entries_out == self.entries_left,
            self.entries_out == stayed,
            self.controls_in == self.controls,
            self.keys <= self.entries_out - self.controls <= ENTRIES_OF_KEY_MAX * self.keys,
            self.keys - self.rows <= self.deletes,
            self.entries_out == 0 or self.bytes_out > 0,
        )
        if not all(rules):
            raise Unbalanced(
                f"{place}: the compaction does not add up, nothing was changed: {self.to_json()}"
            )

    def to_json(self) -> dict[str, int]:
        return {field.name: getattr(self, field.name) for field in fields(self)}
