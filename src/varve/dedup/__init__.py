"""Copies a topic without duplicates: the rules, the remembered ids, the processor."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from varve.dedup.processor import Deduplicator
    from varve.dedup.rules import DedupRules, parse_id_source

__all__ = ["DedupRules", "Deduplicator", "parse_id_source"]

_MODULES: Final = {
    "DedupRules": "rules",
    "Deduplicator": "processor",
    "parse_id_source": "rules",
}
"""Imported at first use: Spark executors need the rules, and no database."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'varve.dedup' has no attribute {name!r}")
    return getattr(import_module(f"varve.dedup.{_MODULES[name]}"), name)
