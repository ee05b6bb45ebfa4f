"""varve on Spark: the data source, and jobs on the user's session."""

from varve.jobs.table.catalog import CatalogAddress as Catalog
from varve.jobs.tier.bucket import Bucket as Bucket
from varve.spark.data_source import register
from varve.spark.maintenance import compact, erase, snapshot, sync_table, verify
from varve.spark.session import get_session

__all__ = [
    "Bucket",
    "Catalog",
    "compact",
    "erase",
    "get_session",
    "register",
    "snapshot",
    "sync_table",
    "verify",
]
