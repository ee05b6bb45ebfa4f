"""`python -m varve.kernels`: compile every kernel into numba's cache, and say how long it took.

A module of the room takes part by a function `warm()` that calls each of its kernels once for every
set of argument types in use.
"""

import importlib
import pkgutil
import time

import varve.kernels


def warm_all() -> list[tuple[str, float]]:
    """Names of the modules that were warmed, with the seconds each took."""
    timings = []
    for module_info in pkgutil.iter_modules(varve.kernels.__path__):
        if module_info.name == "__main__":
            continue
        warm = getattr(importlib.import_module(f"varve.kernels.{module_info.name}"), "warm", None)
        if warm is not None:
            started = time.perf_counter()
            warm()
            timings.append((module_info.name, time.perf_counter() - started))
    return timings


def main() -> None:
    timings = warm_all()
    for name, seconds in timings:
        print(f"{name:<20} {seconds:6.2f} s")
    print(f"{'all kernels':<20} {sum(seconds for _, seconds in timings):6.2f} s")


if __name__ == "__main__":
    main()
