"""Why a topic's shapes start anew."""

from enum import StrEnum
from typing import NamedTuple


class ResetKind(StrEnum):
    """What happened to the topic."""

    SOURCE_LOST = "source_lost"
    """It is another one, or lost records, or the table of its rows is new."""
    TRUNCATED = "truncated"
    """Its source let go of all rows."""
    SCHEMA_CHANGED = "schema_changed"
    """Its source has other columns."""


class Reset(NamedTuple):
    """One reset; `text` says what, where and which value."""

    kind: ResetKind
    text: str
