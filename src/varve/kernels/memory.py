"""Loads, stores and copies inside kernels, by position in a buffer or by address.

Passing an array to a function costs two atomic updates of its reference count per call, so a loop
over many small fields takes the address of its buffer once and works with addresses.

Invariant  nothing is checked here: the caller checks the range against its buffer, and keeps the
           array alive that owns the bytes. numba frees an array that a kernel allocates after the
           last use of its name; `keep_alive` is such a use. Python objects are borrowed
           addresses: a call on an object of another type returns -1, or 0 for an address, and sets
           an error that `clear_error` clears.
Threads    the functions on Python objects need the GIL, see `compile.object_kernel`.
"""

import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from varve.kernels.compile import inlined

Bytes = npt.NDArray[np.uint8]
LoadFromBuffer = Callable[[Bytes, int], int]


def _is_byte_buffer(buffer: Any) -> bool:
    return (
        isinstance(buffer, types.Array)
        and buffer.dtype == types.uint8
        and buffer.ndim == 1
        and buffer.layout == "C"
    )


def _emit_load(builder: Any, pointer: Any, bits: int, order: str, widen: str) -> Any:
    value = builder.load(builder.bitcast(pointer, ir.IntType(bits).as_pointer()), align=1)
    if order != sys.byteorder and bits > 8:
        value = builder.bswap(value)
    return value if bits == 64 else getattr(builder, widen)(value, ir.IntType(64))


def _load(bits: int, order: str, result: Any, widen: str) -> LoadFromBuffer:
    """An intrinsic `load(buffer, position)` of `bits` bits in a byte order, widened to 64."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        return _emit_load(builder, builder.gep(array.data, [args[1]]), bits, order, widen)

    def typer(typing_context: Any, buffer: Any, position: Any) -> Any:
        # numba takes None for "no such signature" and reports a typing error.
        return (result(buffer, types.int64), emit) if _is_byte_buffer(buffer) else None

    return cast(LoadFromBuffer, intrinsic(typer))


def _load_at(bits: int, order: str, result: Any) -> Callable[[int], Any]:
    """An intrinsic `load(address)` of `bits` bits in a byte order, widened to 64 with zeros."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(8).as_pointer())
        return _emit_load(builder, pointer, bits, order, "zext")

    def typer(typing_context: Any, address: Any) -> Any:
        return result(types.int64), emit

    return cast(Callable[[int], Any], intrinsic(typer))


def _store_at(bits: int) -> Callable[[int, Any], None]:
    """An intrinsic `store(address, value)` of the low `bits` bits in the machine's byte order."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = builder.inttoptr(args[0], ir.IntType(bits).as_pointer())
        value = args[1] if bits == 64 else builder.trunc(args[1], ir.IntType(bits))
        builder.store(value, target, align=1)
        return context.get_dummy_value()

    def typer(typing_context: Any, address: Any, value: Any) -> Any:
        return types.void(types.int64, types.uint64), emit

    return cast(Callable[[int, Any], None], intrinsic(typer))


def _address_typer(typing_context: Any, array: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    is_dense = isinstance(array, types.Array) and array.layout == "C"
    return (types.int64(array), emit) if is_dense else None


def _keep_alive_typer(typing_context: Any, array: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_dummy_value()

    return types.void(array), emit


def _copy_typer(typing_context: Any, target: Any, source: Any, size: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        to, start = builder.inttoptr(args[0], pointer), builder.inttoptr(args[1], pointer)
        cgutils.raw_memcpy(builder, to, start, args[2], 1)  # type: ignore[no-untyped-call]  # numba ships no types
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


load_u8 = _load(8, "big", types.int64, "zext")
load_i16 = _load(16, "big", types.int64, "sext")
load_i32 = _load(32, "big", types.int64, "sext")
load_u32 = _load(32, "big", types.int64, "zext")
load_i64 = _load(64, "big", types.int64, "sext")
load_little_u64 = _load(64, "little", types.uint64, "zext")

load_u8_at = _load_at(8, "big", types.int64)
load_little_u64_at = _load_at(64, "little", types.uint64)
load_u64_at = _load_at(64, sys.byteorder, types.uint64)
store_u8_at = _store_at(8)
store_u64_at = _store_at(64)

address_of = cast(Callable[[npt.NDArray[Any]], int], intrinsic(_address_typer))
"""The address of the first byte of an array without gaps."""
keep_alive = cast(Callable[[npt.NDArray[Any]], None], intrinsic(_keep_alive_typer))
"""Keeps an array alive up to this call, while its address is in use."""
copy_bytes = cast(Callable[[int, int, int], None], intrinsic(_copy_typer))
"""`copy_bytes(target, source, size)`; the two do not overlap."""


@inlined
def append_bytes(at: int, source: int, size: int) -> int:
    """Copies bytes to an address; returns the address after them."""
    copy_bytes(at, source, size)
    return at + size


@inlined
def append_byte(at: int, byte: int) -> int:
    store_u8_at(at, np.uint64(byte))
    return at + 1


@inlined
def append_decimal(at: int, number: int) -> int:
    """Writes the decimal digits of a number that is not negative."""
    count, quotient = 1, number
    while quotient >= 10:
        quotient //= 10
        count += 1
    for step in range(count):
        store_u8_at(at + count - 1 - step, np.uint64(0x30 + number % 10))
        number //= 10
    return at + count


@inlined
def append_big_endian(at: int, value: Any, size: int) -> int:
    """Writes the low `size` bytes of a number, the highest byte first."""
    for index in range(size):
        store_u8_at(at + index, np.uint64(value) >> np.uint64(8 * (size - 1 - index)))
    return at + size


def _interpreter_function(name: str, *signature: Any) -> Any:
    """A function of CPython's stable C interface."""
    return types.ExternalFunction(name, signature[0](*signature[1:]))


list_size = _interpreter_function("PyList_Size", types.int64, types.int64)
list_item = _interpreter_function("PyList_GetItem", types.int64, types.int64, types.int64)
tuple_size = _interpreter_function("PyTuple_Size", types.int64, types.int64)
tuple_item = _interpreter_function("PyTuple_GetItem", types.int64, types.int64, types.int64)
int_value = _interpreter_function("PyLong_AsLongLong", types.int64, types.int64)
bytes_size = _interpreter_function("PyBytes_Size", types.int64, types.int64)
bytes_address = _interpreter_function("PyBytes_AsString", types.int64, types.int64)
clear_error = _interpreter_function("PyErr_Clear", types.void)
