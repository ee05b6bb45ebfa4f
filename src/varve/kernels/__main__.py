"""`python -m varve.kernels`: compiles every kernel into numba's cache, on all cores.

It searches every `kernels` directory of varve for modules with a function `warm()`, which calls
each kernel of the module once for every set of argument types in use.
"""

import importlib
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from varve.kernels.compile import KERNEL_DIRECTORY

_ROOT: Final = Path(__file__).parents[1]


def warm_all() -> list[str]:
    """Compiles or loads every kernel in this process; returns the names of their modules."""
    return [name for name in find_kernel_modules() if warm_module(name)]


def warm_module(name: str) -> bool:
    """Whether the module of this name has kernels to compile; they are compiled then."""
    warm = getattr(importlib.import_module(name), "warm", None)
    if warm is not None:
        warm()
    return warm is not None


def find_kernel_modules() -> list[str]:
    """Full names of the modules, the longest source first: it takes the longest to compile."""
    paths = [path for path in _ROOT.glob(f"**/{KERNEL_DIRECTORY}/*.py") if path.stem != "__main__"]
    paths.sort(key=lambda path: (-path.stat().st_size, path))
    return [".".join(path.relative_to(_ROOT.parent).with_suffix("").parts) for path in paths]


def compile_in_parallel(process_count: int) -> list[str]:
    """Compiles in several processes; returns the names of the modules with kernels.

    Two processes that compile a kernel at the same time overwrite each other's entry in numba's
    index. What is missing then is compiled by a last pass, which loads all else.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(process_count, mp_context=context) as pool:
        list(pool.map(warm_module, find_kernel_modules()))
    return warm_all()


def main() -> None:
    started = time.perf_counter()
    process_count = os.cpu_count() or 1
    names = compile_in_parallel(process_count) if process_count > 1 else warm_all()
    print(f"compiled the kernels of {len(names)} modules in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    # By its name, because a spawned process finds no functions of a module that is run.
    importlib.import_module("varve.kernels.__main__").main()
