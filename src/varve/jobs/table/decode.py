"""Values as columns: what every format gives, and values that are not opened at all.

Invariant  a value becomes a row or a reason why not, never neither. What becomes of it does not
           depend on the values around it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # ships no types

from varve.jobs.table.schema import raw_fields


@dataclass(frozen=True, slots=True)
class Decoded:
    """`columns` hold the values that are rows, in their order; `reasons` why the others are not."""

    columns: tuple[pa.Array, ...]
    is_bad: npt.NDArray[np.bool_]
    reasons: tuple[str, ...] = ()


class Decoder(Protocol):
    """Opens values; it travels to executors."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns it gives."""

    def decode(self, values: pa.Array, headers: pa.Array) -> Decoded:
        """The columns of values, none of which is null."""


@dataclass(frozen=True, slots=True)
class RawDecoder:
    """The bytes as they are, with the headers."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in raw_fields())

    def decode(self, values: pa.Array, headers: pa.Array) -> Decoded:
        return Decoded((values, headers), np.zeros(len(values), np.bool_))


def join_decoded(parts: Sequence[Decoded]) -> Decoded:
    """One after the other."""
    if len(parts) == 1:
        return parts[0]
    return Decoded(
        tuple(
            pa.concat_arrays(columns) for columns in zip(*(p.columns for p in parts), strict=True)
        ),
        np.concatenate([part.is_bad for part in parts]),
        tuple(reason for part in parts for reason in part.reasons),
    )
