"""Copies a topic without duplicates: the rules, the remembered ids, the processor."""

from typing import TYPE_CHECKING, Any

from varve.dedup.rules import DedupRules, parse_id_source

if TYPE_CHECKING:
    from varve.dedup.processor import Deduplicator

__all__ = ["DedupRules", "Deduplicator", "parse_id_source"]


def __getattr__(name: str) -> Any:
    """Imports the processor at first use: Spark executors need the rules, and no database."""
    if name != "Deduplicator":
        raise AttributeError(f"module 'varve.dedup' has no attribute {name!r}")
    from varve.dedup.processor import Deduplicator

    return Deduplicator
