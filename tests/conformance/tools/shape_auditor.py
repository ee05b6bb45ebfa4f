"""A client that counts what all accounts of a shape have together, whenever it has all.

Invariant  what moves between accounts in one transaction leaves the sum as it is: another one means
           that a part of a transaction was seen.
"""

from collections.abc import Mapping
from typing import Any

from tests.support.shape_follower import Follower


class Auditor(Follower):
    """Raises where the balances of its rows do not come to `total`."""

    def __init__(self, *given: Any, total: int, **options: Any) -> None:
        super().__init__(*given, **options)
        self.audit_count = 0
        self._total = total

    def _take(self, headers: Mapping[str, str], messages: list[Any]) -> None:
        super()._take(headers, messages)
        if self.is_current:
            self._audit()

    def _take_events(self, messages: list[Any]) -> None:
        super()._take_events(messages)
        self._audit()

    def _audit(self) -> None:
        found = sum(row["balance"] for row in self.rows.values())
        assert found == self._total, (
            f"at {self.offset} all accounts have {found} together, not {self._total}"
        )
        self.audit_count += 1
