"""The metrics of a MeteredObjectStore."""

from varve.foundation.metrics import counter

REQUESTS = counter(
    "varve_object_store_requests_total",
    "Requests sent; those of an upload in parts and of pages are computed.",
    unit="requests",
    labels=("store", "operation"),
)
ERRORS = counter(
    "varve_object_store_errors_total",
    "Calls that failed, by the error's class; a missing object counts too.",
    unit="calls",
    labels=("store", "operation", "error"),
)
SECONDS = counter(
    "varve_object_store_seconds_total",
    "Time that calls took, without that of the caller between the pages of a list.",
    unit="seconds",
    labels=("store", "operation"),
)
READ_BYTES = counter(
    "varve_object_store_read_bytes_total",
    "Bytes of objects handed out.",
    unit="bytes",
    labels=("store",),
)
WRITTEN_BYTES = counter(
    "varve_object_store_written_bytes_total",
    "Bytes of objects written.",
    unit="bytes",
    labels=("store",),
)
COST = counter(
    "varve_object_store_cost_total",
    "What requests and bytes read cost by the price table, in its currency.",
    unit="currency",
    labels=("store",),
)
