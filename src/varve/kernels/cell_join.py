"""A list of byte strings into one column, through the interpreter's stable C interface.

Joining them and asking each for its length, in Python, takes longer than building the batch.

Threads    unlike all other kernels these keep the GIL: they look at Python objects. No Python code
           runs meanwhile, so the list cannot change under them.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from varve.kernels.batch_build import address_of, copy_bytes
from varve.kernels.compile import object_kernel

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]


def _external(name: str, *signature: Any) -> Any:
    """A function of the interpreter; objects are addresses, borrowed and never owned."""
    return types.ExternalFunction(name, signature[0](*signature[1:]))


_list_size = _external("PyList_Size", types.int64, types.int64)
_list_item = _external("PyList_GetItem", types.int64, types.int64, types.int64)
_bytes_size = _external("PyBytes_Size", types.int64, types.int64)
_bytes_address = _external("PyBytes_AsString", types.int64, types.int64)
_clear_error = _external("PyErr_Clear", types.void)


@object_kernel
def _join(cells: int, none: int) -> Any:
    count = _list_size(cells)
    starts = np.empty(count, np.int64)
    sizes = np.empty(count, np.int64)
    total = 0
    for index in range(count):
        cell = _list_item(cells, index)
        starts[index] = total
        sizes[index] = -1
        if cell != none:
            size = _bytes_size(cell)
            if size < 0:
                _clear_error()
                return index, np.empty(0, np.uint8), starts, sizes
            sizes[index] = size
            total += size
    data = np.empty(total, np.uint8)
    at = address_of(data)
    for index in range(count):
        if sizes[index] > 0:
            copy_bytes(at + starts[index], _bytes_address(_list_item(cells, index)), sizes[index])
    return -1, data, starts, sizes


def join_cells(cells: list[bytes | None]) -> tuple[int, Bytes, Integers, Integers]:
    """(-1, bytes, starts, sizes), None having size -1; or the index of the first misfit."""
    joined: tuple[int, Bytes, Integers, Integers] = _join(id(cells), id(None))
    return joined


def warm() -> None:
    """Compile for the one set of types there is."""
    join_cells([b"", None])
