"""Unaligned loads from a byte buffer, for use inside kernels: one machine instruction each.

Invariant  nothing is checked here: the caller has compared the position with its range's end.
"""

import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

Bytes = npt.NDArray[np.uint8]
Load = Callable[[Bytes, int], int]


def _is_byte_buffer(buffer: Any) -> bool:
    return (
        isinstance(buffer, types.Array)
        and buffer.dtype == types.uint8
        and buffer.ndim == 1
        and buffer.layout == "C"
    )


def _load(bits: int, order: str, result: Any, widen: str) -> Load:
    """An intrinsic `load(buffer, position)` of `bits` bits in a byte order, widened to 64."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        address = builder.gep(array.data, [args[1]])
        value = builder.load(builder.bitcast(address, ir.IntType(bits).as_pointer()), align=1)
        if order != sys.byteorder and bits > 8:
            value = builder.bswap(value)
        return value if bits == 64 else getattr(builder, widen)(value, ir.IntType(64))

    def typer(typing_context: Any, buffer: Any, position: Any) -> Any:
        # numba takes None for "no such signature" and reports a typing error.
        return (result(buffer, types.int64), emit) if _is_byte_buffer(buffer) else None

    return cast(Load, intrinsic(typer))


load_u8 = _load(8, "big", types.int64, "zext")
load_i16 = _load(16, "big", types.int64, "sext")
load_i32 = _load(32, "big", types.int64, "sext")
load_u32 = _load(32, "big", types.int64, "zext")
load_i64 = _load(64, "big", types.int64, "sext")
load_little_u64 = _load(64, "little", types.uint64, "zext")
