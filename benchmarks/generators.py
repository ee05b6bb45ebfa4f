"""Data for the measures: keyed records and ready batches, the same in every run.

The batches come from aiokafka's builder, so that what varve is fed was not made by varve.
"""

import random
from collections.abc import Sequence

from benchmarks.baselines import KeyedRecord, build_with_client, new_aiokafka_builder

KEY_BYTES = 16
_RECORD_OVERHEAD_BYTES = 12
_BATCH_OVERHEAD_BYTES = 61
_SEED = 2


def make_records(count: int, *, value_bytes: int, seed: int = _SEED) -> list[KeyedRecord]:
    """Records with distinct 16-byte keys and incompressible values."""
    source = random.Random(seed)
    return [(b"key-%012d" % index, source.randbytes(value_bytes)) for index in range(count)]


def records_per_batch(*, value_bytes: int, batch_bytes: int) -> int:
    """How many records fit a batch of that size; at least one."""
    record_bytes = value_bytes + KEY_BYTES + _RECORD_OVERHEAD_BYTES
    return max(1, (batch_bytes - _BATCH_OVERHEAD_BYTES) // record_bytes)


def make_batches(count: int, *, value_bytes: int, batch_bytes: int) -> list[bytes]:
    """Distinct ready batches of about `batch_bytes`, as a producer would send them."""
    per_batch = records_per_batch(value_bytes=value_bytes, batch_bytes=batch_bytes)
    return [
        build_with_client(
            new_aiokafka_builder, make_records(per_batch, value_bytes=value_bytes, seed=_SEED + i)
        )
        for i in range(count)
    ]


def repeat_to(batches: Sequence[bytes], total_bytes: int) -> list[bytes]:
    """The batches over and over until they make up `total_bytes`."""
    round_bytes = sum(len(batch) for batch in batches)
    return list(batches) * max(1, round(total_bytes / round_bytes))
