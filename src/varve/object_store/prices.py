"""Prices of object stores: list prices with date and source, which callers may replace.

Discounts, free allowances, volume tiers and taxes are not included. All three charge no deletes.
docs/reference/object-stores.md describes how each table was compared with its source.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

GIB: Final = 1 << 30
"""The gigabyte of the three providers' bills."""


class RequestKind(StrEnum):
    """Requests as providers price them."""

    WRITE = "write"
    """Puts, creates, parts of uploads and their begin and end."""
    READ = "read"
    """Gets of objects and ranges, heads."""
    LIST = "list"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """Prices per 1000 requests, per GiB read out, and per GiB and month stored."""

    name: str
    as_of: str
    """Year and month of the price list."""
    source: str = ""
    """The price list; empty where there is none to name."""
    currency: str = "USD"
    write_per_1000: float
    read_per_1000: float
    list_per_1000: float
    delete_per_1000: float = 0.0
    stored_per_gib_month: float
    read_per_gib: float = 0.0

    def requests_cost(self, counts: Mapping[RequestKind, int]) -> float:
        per_1000 = {
            RequestKind.WRITE: self.write_per_1000,
            RequestKind.READ: self.read_per_1000,
            RequestKind.LIST: self.list_per_1000,
            RequestKind.DELETE: self.delete_per_1000,
        }
        return sum(count * per_1000[kind] for kind, count in counts.items()) / 1000

    def transfer_cost(self, read_bytes: int) -> float:
        return read_bytes / GIB * self.read_per_gib

    def stored_cost_per_month(self, stored_bytes: int) -> float:
        return stored_bytes / GIB * self.stored_per_gib_month

    def format_monthly_cost(self, stored_bytes: int) -> str:
        """What storing these bytes costs in a month, as `USD 1.20`."""
        cost = self.stored_cost_per_month(stored_bytes)
        return f"{self.currency} {'<0.01' if 0 < cost < 0.01 else f'{cost:,.2f}'}"


FREE: Final = PriceTable(
    name="free",
    as_of="always",
    write_per_1000=0.0,
    read_per_1000=0.0,
    list_per_1000=0.0,
    stored_per_gib_month=0.0,
)
"""For directories and memory."""

S3_STANDARD: Final = PriceTable(
    name="Amazon S3 Standard, US East (N. Virginia), read within the region",
    as_of="2026-07",
    source="AWS Price List, AmazonS3, us-east-1",
    write_per_1000=0.005,
    read_per_1000=0.0004,
    list_per_1000=0.005,
    stored_per_gib_month=0.023,
)

GCS_STANDARD: Final = PriceTable(
    name="Google Cloud Storage Standard, us-central1, read within the region",
    as_of="2026-09",
    source="cloud.google.com/storage/pricing",
    write_per_1000=0.005,
    read_per_1000=0.0004,
    list_per_1000=0.005,
    stored_per_gib_month=0.020,
)

AZURE_HOT: Final = PriceTable(
    name="Azure Blob Storage Hot LRS, West US 2, read within the region",
    as_of="2026-04",
    source="Azure Retail Prices API, General Block Blob v2",
    write_per_1000=0.005,
    read_per_1000=0.0004,
    list_per_1000=0.005,
    stored_per_gib_month=0.0184,
)

_BY_SCHEME: Final = {"s3": S3_STANDARD, "gs": GCS_STANDARD, "az": AZURE_HOT}


def default_prices(store_name: str) -> PriceTable:
    """The declared prices for a store by the scheme of its name, FREE for others."""
    return _BY_SCHEME.get(store_name.partition(":")[0], FREE)
