"""How kernels are compiled: one decorator for kernels, one for the small functions inside them.

Cache      machine code is kept in numba's cache beside the source (or in NUMBA_CACHE_DIR, or in the
           user's cache directory when the source is read-only). numba keys an entry by the CPU's
           name and features, so a cache shared between machines never runs code a CPU lacks.
           Cached code runs without initializing numba's compiler.
Invariant  machine code is recompiled when a source file changes that it was compiled from. These
           files are found by following imports, so a module with kernels imports from varve only
           modules of `kernels` directories.
Threads    kernels keep no state, and release the GIL except those that read Python objects.
"""

import ast
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numpy as np
import numpy.typing as npt
from numba import njit
from numba.core.caching import FunctionCache
from numba.core.runtime.nrt import rtsys

F = TypeVar("F", bound=Callable[..., Any])

as_int = cast(Callable[[Any], int], np.int64)
"""Inside kernels: any integer as a signed one of 64 bits. A plain int to the type checker."""

KERNEL_DIRECTORY: Final = "kernels"
_ROOT_PACKAGE: Final = "varve"


@cache
def kernel_sources(path: Path) -> frozenset[Path]:
    """A module's file and those of the kernel modules that it imports, directly or not.

    Every form of import counts, anywhere in the file.
    """
    sources = {path}
    for imported in _imported_kernel_files(path):
        if imported not in sources:
            sources |= kernel_sources(imported)
    return frozenset(sources)


def _imported_kernel_files(path: Path) -> set[Path]:
    root = _root_directory(path)
    files = set()
    for name in imported_modules(path):
        file = root.joinpath(*name.split(".")).with_suffix(".py")
        if name.split(".")[-2:-1] == [KERNEL_DIRECTORY] and file.is_file():
            files.add(file)
    return files - {path}


def imported_modules(path: Path) -> set[str]:
    """Full names of the varve modules that a file may import; some name a symbol, not a module."""
    package = path.relative_to(_root_directory(path)).with_suffix("").parts[:-1]
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return {name for name in names if name.split(".")[0] == _ROOT_PACKAGE}


def _root_directory(path: Path) -> Path:
    """The directory that holds the package varve, to which the module of this file belongs."""
    for parent in path.parents:
        if parent.name == _ROOT_PACKAGE:
            return parent.parent
    raise ValueError(f"{path} does not belong to the package {_ROOT_PACKAGE}")


@cache
def _stamp(path: Path) -> tuple[int, int]:
    """A checksum of a module's sources and their total size.

    Modification times would not do: they change when a Spark executor unpacks the package, which
    would then compile everything again.
    """
    texts = [source.read_bytes() for source in sorted(kernel_sources(path))]
    return zlib.crc32(b"\0".join(texts)), sum(map(len, texts))


class _KernelCache(FunctionCache):
    """numba's cache of one kernel, keyed by the sources of the kernel."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]  # numba ships no types
        # numba notices a change of the function's file, not of the files with what it calls.
        self._cache_file._source_stamp = _stamp(Path(function.__code__.co_filename))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Loads machine code with numba's runtime alone.

        numba's own method first initializes the compiler, which takes 0.35 s and 12 MiB for the
        typing rules of Python and numpy. The compiler is initialized before it compiles anyway.
        """
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]


def kernel(function: F) -> F:
    """Compiles at the first call for each set of argument types; runs without the GIL."""
    return _compiled(function, nogil=True)


def object_kernel(function: F) -> F:
    """As `kernel`, for one that reads Python objects and so keeps the GIL."""
    return _compiled(function, nogil=False)


def _compiled(function: F, *, nogil: bool) -> F:
    dispatcher: Any = njit(nogil=nogil, error_model="numpy")(function)
    dispatcher._cache = _KernelCache(function)
    return cast(F, dispatcher)


def inlined(function: F) -> F:
    """A function for use inside kernels only; it is always inlined."""
    return cast(F, njit(nogil=True, forceinline=True, error_model="numpy")(function))


def byte_buffers(data: bytes) -> list[npt.NDArray[np.uint8]]:
    """The same bytes read-only and writable: numba compiles a kernel for each of the two."""
    return [np.frombuffer(data, np.uint8), np.frombuffer(bytearray(data), np.uint8)]
