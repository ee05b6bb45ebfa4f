"""Which shapes a server has: none may go because of a crash.

Invariant  a shape whose snapshot was complete is there at the next look, unless it was deleted, or
           its log had outgrown its state, or its topic forgot deletions while nobody read it.
"""

import ast
import re
from collections.abc import Collection
from typing import Final

import httpx

from tests.support.shape_server import ShapeServer

_DROPPED: Final = re.compile(r"shapes dropped reason=(\w+) handles=(\[.*?\])")
_FAIR: Final = {"deleted", "outgrown"}
_OF_FORGETFUL: Final = "source_lost"


class ShapeLives:
    """Looks at the shapes of one server; topics that are `forgetful` may lose theirs."""

    def __init__(self, server: ShapeServer, *, forgetful: Collection[str]) -> None:
        self._server = server
        self._forgetful = forgetful
        self._tables: dict[str, str] = {}

    def look(self) -> list[str]:
        """What went without a reason since the last look. The server must be there."""
        answer = httpx.get(f"{self._server.base}/v1/shapes", timeout=60)
        assert answer.status_code == 200, answer.text
        found = answer.json()["shapes"]
        here = {shape["handle"] for shape in found}
        reasons = self._reasons()
        lost = [
            f"shape {handle} of {table} went: {reasons.get(handle, 'nobody said why')}"
            for handle, table in self._tables.items()
            if handle not in here and not self._is_fair(table, reasons.get(handle))
        ]
        self._tables = {
            shape["handle"]: shape["table"] for shape in found if shape["snapshot"] == "complete"
        }
        return lost

    def _is_fair(self, table: str, reason: str | None) -> bool:
        return reason in _FAIR or (reason == _OF_FORGETFUL and table in self._forgetful)

    def _reasons(self) -> dict[str, str]:
        dropped = _DROPPED.findall(self._server.log.read_text())
        return {handle: reason for reason, told in dropped for handle in ast.literal_eval(told)}
