"""Loads and stores at an address, for use inside kernels: one machine instruction each.

An array handed to a function inside a loop costs two atomic reference counts per call; a loop over
many small fields takes its buffer's address once and goes on from there.

Invariant  nothing is checked here: the caller has compared the address with its range's end, and
           holds the array that owns the bytes. An array that a kernel makes is freed behind the
           last place that names it, so one used by its address is named by `keep` at the end.
"""

import sys
from collections.abc import Callable
from typing import Any, cast

import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

ENTRY_BYTES = 32


def _peek(bits: int, order: str, result: Any) -> Callable[[int], Any]:
    """An intrinsic `peek(address)` of `bits` bits in a byte order, widened to 64 with zeros."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
        value = builder.load(source, align=1)
        if order != sys.byteorder and bits > 8:
            value = builder.bswap(value)
        return value if bits == 64 else builder.zext(value, ir.IntType(64))

    def typer(typing_context: Any, address: Any) -> Any:
        return result(types.int64), emit

    return cast(Callable[[int], Any], intrinsic(typer))


def _start_typer(typing_context: Any, array: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    # numba takes None for "no such signature" and reports a typing error.
    is_dense = isinstance(array, types.Array) and array.layout == "C"
    return (types.int64(array), emit) if is_dense else None


def _keep_typer(typing_context: Any, array: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_dummy_value()

    return types.void(array), emit


def _copy_typer(typing_context: Any, target: Any, source: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        to, start = builder.inttoptr(args[0], pointer), builder.inttoptr(args[1], pointer)
        size = context.get_constant(types.int64, ENTRY_BYTES)
        cgutils.raw_memcpy(builder, to, start, size, 1)  # type: ignore[no-untyped-call]  # numba ships no types
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


def _poke_typer(typing_context: Any, address: Any, value: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        builder.store(args[1], target, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), emit


start_of = cast(Callable[[npt.NDArray[Any]], int], intrinsic(_start_typer))
"""The address of an array's first byte; the array has no gaps."""
keep = cast(Callable[[npt.NDArray[Any]], None], intrinsic(_keep_typer))
"""Holds an array up to here, whose address was taken before."""
peek_u8 = _peek(8, "big", types.int64)
peek_little_u64 = _peek(64, "little", types.uint64)
peek_u64 = _peek(64, sys.byteorder, types.uint64)
poke_u64 = cast(Callable[[int, Any], None], intrinsic(_poke_typer))
copy_entry = cast(Callable[[int, int], None], intrinsic(_copy_typer))
"""`copy_entry(target, source)`: ENTRY_BYTES bytes that do not overlap."""
