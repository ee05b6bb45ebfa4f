"""CRC-32C of a range of a byte buffer, by the CPU's instruction where it has one.

x86-64 and ARMv8 have an instruction that folds eight bytes into the checksum. It takes three
cycles, but one can start each cycle, so three adjacent blocks are folded in parallel and their
checksums combined by a table. Other CPUs fold eight bytes by eight table look-ups.
docs/explanation/decisions/0004-crc32c-in-a-kernel.md
"""

from collections.abc import Callable
from typing import Any, cast

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import config
from numba.extending import intrinsic

from varve.kernels.compile import as_int, byte_buffers, inlined, kernel
from varve.kernels.memory import Bytes, load_little_u64, load_u8

Table = npt.NDArray[np.uint64]

_POLYNOMIAL = 0x82F63B78
"""Castagnoli's, bits reversed."""
# Sizes of the three parallel blocks, tried from the largest on: combining costs less for large
# blocks, and small ones leave less for the loop over single words.
_LARGE_BLOCK = 8192
_MIDDLE_BLOCK = 1024
_SMALL_BLOCK = 128
_ONES = np.uint64(0xFFFFFFFF)


def _apply(images: Table, values: Table) -> Table:
    """The linear map that takes bit i to images[i], applied to each value."""
    bits = (values[:, None] >> np.arange(32, dtype=np.uint64)) & np.uint64(1)
    return cast(Table, np.bitwise_xor.reduce(bits * images, axis=1))


def _images_after_zeros(byte_count: int) -> Table:
    """The value of each bit of a checksum after `byte_count` (a power of two) zero bytes."""
    images = np.uint64(1) << np.arange(32, dtype=np.uint64)
    for _ in range(8):
        images = (images >> np.uint64(1)) ^ ((images & np.uint64(1)) * np.uint64(_POLYNOMIAL))
    for _ in range(byte_count.bit_length() - 1):
        images = _apply(images, images)
    return images


def _shift_table(byte_count: int) -> Table:
    """Four tables of 256, one for each byte of the checksum that moves past `byte_count` bytes."""
    images = _images_after_zeros(byte_count)
    byte_values = np.arange(256, dtype=np.uint64)
    return np.concatenate([_apply(images, byte_values << np.uint64(8 * i)) for i in range(4)])


def _slicing_table() -> Table:
    """Eight tables of 256: table k takes a byte past itself and k further bytes."""
    tables = [_apply(_images_after_zeros(1), np.arange(256, dtype=np.uint64))]
    for _ in range(7):
        previous = tables[-1]
        tables.append((previous >> np.uint64(8)) ^ tables[0][previous & np.uint64(0xFF)])
    return np.concatenate(tables)


_LARGE_SHIFT = _shift_table(_LARGE_BLOCK)
_MIDDLE_SHIFT = _shift_table(_MIDDLE_BLOCK)
_SMALL_SHIFT = _shift_table(_SMALL_BLOCK)
_SLICES = _slicing_table()


def _instructions() -> str:
    """The CRC instruction of numba's target: "x86", "arm" or "none"."""
    machine = llvm.get_process_triple().split("-")[0]
    settings: Any = config
    if settings.CPU_NAME:
        # The user names a target other than this CPU: only its stated features may be used.
        stated = str(settings.CPU_FEATURES or "").split(",")
        features = {feature[1:] for feature in stated if feature.startswith("+")}
    else:
        features = {name for name, present in llvm.get_host_cpu_features().items() if present}
    if machine == "x86_64" and features & {"crc32", "sse4.2"}:
        return "x86"
    if machine in ("aarch64", "arm64") and "crc" in features:
        return "arm"
    return "none"


@intrinsic
def _fold_word_typer(typing_context: Any, crc: Any, word: Any) -> Any:
    """Folds eight bytes, loaded little-endian, into the checksum by the CPU's instruction."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32, i64 = ir.IntType(32), ir.IntType(64)
        if _INSTRUCTIONS == "x86":
            kind = ir.FunctionType(i64, [i64, i64])
            fold = builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", (), kind)
            return builder.call(fold, args)
        kind = ir.FunctionType(i32, [i32, i64])
        fold = builder.module.declare_intrinsic("llvm.aarch64.crc32cx", (), kind)
        return builder.zext(builder.call(fold, [builder.trunc(args[0], i32), args[1]]), i64)

    return types.uint64(types.uint64, types.uint64), emit


_fold_word = cast(Callable[[Any, Any], Any], _fold_word_typer)


@inlined
def _fold_byte(crc: Any, byte: int) -> Any:
    return (crc >> np.uint64(8)) ^ _SLICES[(crc ^ np.uint64(byte)) & np.uint64(0xFF)]


@inlined
def _shift(table: Table, crc: Any) -> Any:
    low = np.uint64(0xFF)
    return (
        table[crc & low]
        ^ table[np.uint64(256) + ((crc >> np.uint64(8)) & low)]
        ^ table[np.uint64(512) + ((crc >> np.uint64(16)) & low)]
        ^ table[np.uint64(768) + ((crc >> np.uint64(24)) & low)]
    )


@inlined
def _fold_three(buffer: Bytes, position: int, block: int, crc: Any, table: Table) -> Any:
    """Folds three adjacent blocks in parallel."""
    first, second, third = crc, np.uint64(0), np.uint64(0)
    for at in range(position, position + block, 8):
        first = _fold_word(first, load_little_u64(buffer, at))
        second = _fold_word(second, load_little_u64(buffer, at + block))
        third = _fold_word(third, load_little_u64(buffer, at + 2 * block))
    return _shift(table, _shift(table, first) ^ second) ^ third


@kernel
def _update_by_instruction(buffer: Bytes, start: int, end: int, crc: Any) -> Any:
    position = start
    while end - position >= 3 * _LARGE_BLOCK:
        crc = _fold_three(buffer, position, _LARGE_BLOCK, crc, _LARGE_SHIFT)
        position += 3 * _LARGE_BLOCK
    while end - position >= 3 * _MIDDLE_BLOCK:
        crc = _fold_three(buffer, position, _MIDDLE_BLOCK, crc, _MIDDLE_SHIFT)
        position += 3 * _MIDDLE_BLOCK
    while end - position >= 3 * _SMALL_BLOCK:
        crc = _fold_three(buffer, position, _SMALL_BLOCK, crc, _SMALL_SHIFT)
        position += 3 * _SMALL_BLOCK
    while end - position >= 8:
        crc = _fold_word(crc, load_little_u64(buffer, position))
        position += 8
    while position < end:
        crc = _fold_byte(crc, load_u8(buffer, position))
        position += 1
    return crc


@kernel
def _update_by_table(buffer: Bytes, start: int, end: int, crc: Any) -> Any:
    low = np.uint64(0xFF)
    position = start
    while end - position >= 8:
        word = load_little_u64(buffer, position) ^ crc
        crc = np.uint64(0)
        for i in range(8):
            byte = (np.uint64(word) >> np.uint64(8 * i)) & low
            crc ^= _SLICES[np.uint64(256 * (7 - i)) + byte]
        position += 8
    while position < end:
        crc = _fold_byte(crc, load_u8(buffer, position))
        position += 1
    return crc


_INSTRUCTIONS = _instructions()
_update: Callable[[Bytes, int, int, Any], Any] = (
    _update_by_table if _INSTRUCTIONS == "none" else _update_by_instruction
)


@kernel
def crc32c(buffer: Bytes, start: int, end: int) -> int:
    """Checksum of buffer[start:end]; IndexError when that is not a range of the buffer."""
    if start < 0 or start > end or end > buffer.size:
        raise IndexError("start and end do not name a range of the buffer")
    return as_int(_update(buffer, start, end, _ONES) ^ _ONES)


@kernel
def extend_crc32c(crc: int, buffer: Bytes, start: int, end: int) -> int:
    """Checksum of the bytes that gave `crc`, followed by buffer[start:end]."""
    if start < 0 or start > end or end > buffer.size:
        raise IndexError("start and end do not name a range of the buffer")
    return as_int(_update(buffer, start, end, np.uint64(crc) ^ _ONES) ^ _ONES)


def crc32c_of(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """Checksum of `data`; with `crc`, of the bytes that gave `crc` followed by `data`."""
    buffer = np.frombuffer(data, np.uint8)
    return extend_crc32c(crc, buffer, 0, buffer.size)


@kernel
def crc32c_by_table(buffer: Bytes, start: int, end: int) -> int:
    """As `crc32c` on a CPU without the instruction, for tests and benchmarks."""
    if start < 0 or start > end or end > buffer.size:
        raise IndexError("start and end do not name a range of the buffer")
    return as_int(_update_by_table(buffer, start, end, _ONES) ^ _ONES)


def warm() -> None:
    """Compile for the argument types in use."""
    for buffer in byte_buffers(b"123456789"):
        extend_crc32c(crc32c(buffer, 0, 9), buffer, 0, 9)
        crc32c_by_table(buffer, 0, 9)
