"""varve on Spark: the data source, and jobs on the user's session."""

import importlib
from typing import TYPE_CHECKING, Any, Final

from varve.foundation.extras import describe_missing_extra

if TYPE_CHECKING:
    from varve.jobs.snapshot.store import open_snapshot
    from varve.jobs.table.catalog import CatalogAddress as Catalog
    from varve.jobs.tier.location import TopicLocation
    from varve.spark.data_source import register
    from varve.spark.deduplication.functions import dedup
    from varve.spark.functions import (
        compact,
        erase,
        expire_table,
        read_table,
        snapshot,
        table,
        verify,
    )
    from varve.spark.session import get_session
    from varve.spark.topic_query import query

__all__ = [
    "Catalog",
    "TopicLocation",
    "compact",
    "dedup",
    "erase",
    "expire_table",
    "get_session",
    "open_snapshot",
    "query",
    "read_table",
    "register",
    "snapshot",
    "table",
    "verify",
]

_MODULES: Final = {
    "Catalog": "varve.jobs.table.catalog:CatalogAddress",
    "TopicLocation": "varve.jobs.tier.location",
    "dedup": "varve.spark.deduplication.functions",
    "get_session": "varve.spark.session",
    "open_snapshot": "varve.jobs.snapshot.store",
    "query": "varve.spark.topic_query",
    "register": "varve.spark.data_source",
}
"""Where the names are that are not in `functions`; all are imported on first use."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'varve.spark' has no attribute {name!r}")
    module, _, original = _MODULES.get(name, "varve.spark.functions").partition(":")
    try:
        value = globals()[name] = getattr(importlib.import_module(module), original or name)
    except ModuleNotFoundError as error:
        sentence = describe_missing_extra(error)
        raise ModuleNotFoundError(sentence or str(error), name=error.name) from error
    return value


def __dir__() -> list[str]:
    return __all__
