"""What a check finds: where, which rule is broken, and what would mend it.

Invariant  every finding names a rule of `check_rules`.
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from varve.commit_log.check_rules import RULES

FINDINGS_PER_RULE_AND_FILE: Final = 16


class Severity(StrEnum):
    """ERROR breaks a promise, WARNING mends itself at the next open, NOTE is worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule; `repair` is what a repair would do, None when nothing can be done."""

    severity: Severity
    path: str
    position: int | None
    rule: str
    message: str
    repair: str | None = None


class FindingList:
    """Findings as they come: of one rule in one file the first few, and how many more there are."""

    def __init__(self) -> None:
        self._found: list[Finding] = []
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(
        self,
        severity: Severity,
        path: str,
        rule: str,
        message: str,
        *,
        position: int | None = None,
        repair: str | None = None,
    ) -> None:
        assert rule in RULES, f"{rule} is not a rule"
        self._counts[rule, path] += 1
        if self._counts[rule, path] <= FINDINGS_PER_RULE_AND_FILE:
            self._found.append(Finding(severity, path, position, rule, message, repair))

    def error(
        self,
        path: str,
        rule: str,
        message: str,
        *,
        position: int | None = None,
        repair: str | None = None,
    ) -> None:
        self.add(Severity.ERROR, path, rule, message, position=position, repair=repair)

    def warning(
        self,
        path: str,
        rule: str,
        message: str,
        *,
        position: int | None = None,
        repair: str | None = None,
    ) -> None:
        self.add(Severity.WARNING, path, rule, message, position=position, repair=repair)

    def note(self, path: str, rule: str, message: str, *, repair: str | None = None) -> None:
        self.add(Severity.NOTE, path, rule, message, repair=repair)

    def has(self, rule: str, path: str) -> bool:
        return self._counts[rule, path] > 0

    def all(self) -> list[Finding]:
        found = list(self._found)
        for (rule, path), count in self._counts.items():
            if count > FINDINGS_PER_RULE_AND_FILE:
                more = count - FINDINGS_PER_RULE_AND_FILE
                first = next(f for f in found if f.rule == rule and f.path == path)
                message = f"{more} more of this kind"
                found.append(Finding(first.severity, path, None, rule, message, first.repair))
        return found
