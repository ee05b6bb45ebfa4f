"""How this room compiles: one decorator for kernels, one for the small functions inside them.

Cache      machine code is kept in numba's cache beside the source (or in NUMBA_CACHE_DIR, or in the
           user's cache directory when the source is read-only). numba keys an entry by the CPU's
           name and features, so a cache shared between machines never runs code a CPU lacks.
           What is found there runs without numba's compiler being made ready.
Threads    kernels keep no state, and release the GIL but for those that look at objects.
"""

import re
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit
from numba.core.caching import FunctionCache
from numba.core.runtime.nrt import rtsys

F = TypeVar("F", bound=Callable[..., Any])

as_int = cast(Callable[[Any], int], np.int64)
"""Inside kernels: any integer as a signed one of 64 bits. A plain int to the type checker."""

_ROOM_IMPORT = re.compile(r"^from varve\.kernels\.(\w+) import", re.MULTILINE)


@cache
def _sources(path: Path) -> frozenset[Path]:
    """A module's file and those of the room that it imports, directly or not."""
    found = {path}
    for name in _ROOM_IMPORT.findall(path.read_text(encoding="utf-8")):
        found |= _sources(path.with_name(f"{name}.py"))
    return frozenset(found)


@cache
def _stamp(path: Path) -> tuple[int, int]:
    """A checksum of a module's sources and their total size.

    Not their times: those change when an executor unpacks what was shipped to it, and it would
    compile everything anew.
    """
    texts = [source.read_bytes() for source in sorted(_sources(path))]
    return zlib.crc32(b"\0".join(texts)), sum(map(len, texts))


class _KernelCache(FunctionCache):
    """numba's cache of one kernel, by what the kernel is made of."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]  # numba tells no types
        # numba notices a change of the file that holds a function, not of the files it calls into.
        # Kernels call across files, so an entry is made stale by a change of any file it is made
        # of.
        self._cache_file._source_stamp = _stamp(Path(function.__code__.co_filename))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Loads machine code, which needs numba's runtime and nothing else.

        numba makes its compiler ready first: 0.35 s and 12 MiB for typing rules and functions of
        Python and numpy. It does that again before it compiles.
        """
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]


def kernel(function: F) -> F:
    """Compile at the first call for each set of argument types, without the GIL, and cache."""
    return _compiled(function, nogil=True)


def object_kernel(function: F) -> F:
    """A kernel that looks at Python objects, and so keeps the GIL."""
    return _compiled(function, nogil=False)


def _compiled(function: F, *, nogil: bool) -> F:
    dispatcher: Any = njit(nogil=nogil, error_model="numpy")(function)
    dispatcher._cache = _KernelCache(function)
    return cast(F, dispatcher)


def inlined(function: F) -> F:
    """A function for use inside kernels only: it always dissolves into its caller."""
    return cast(F, njit(nogil=True, forceinline=True, error_model="numpy")(function))


def byte_buffers(data: bytes) -> list[npt.NDArray[np.uint8]]:
    """The same bytes read-only and writable: numba compiles a kernel for each of the two."""
    return [np.frombuffer(data, np.uint8), np.frombuffer(bytearray(data), np.uint8)]
