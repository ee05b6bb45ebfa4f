"""What kernels may look at of the interpreter's objects: lists, tuples, bytes and whole numbers.

Invariant  objects are addresses, borrowed and never owned. What is asked of an object of another
           type is -1, or 0 for an address, and leaves an error that `clear_error` takes back.
Threads    for kernels that keep the GIL; no Python code runs meanwhile, so nothing changes.
"""

from typing import Any

from numba import types


def _external(name: str, *signature: Any) -> Any:
    """A function of the interpreter."""
    return types.ExternalFunction(name, signature[0](*signature[1:]))


list_size = _external("PyList_Size", types.int64, types.int64)
list_item = _external("PyList_GetItem", types.int64, types.int64, types.int64)
tuple_size = _external("PyTuple_Size", types.int64, types.int64)
tuple_item = _external("PyTuple_GetItem", types.int64, types.int64, types.int64)
number_of = _external("PyLong_AsLongLong", types.int64, types.int64)
bytes_size = _external("PyBytes_Size", types.int64, types.int64)
bytes_address = _external("PyBytes_AsString", types.int64, types.int64)
clear_error = _external("PyErr_Clear", types.void)
