"""`python -m varve.kernels`: compiles every kernel into numba's cache and prints the times.

It searches every `kernels` directory of varve for modules with a function `warm()`, which calls
each kernel of the module once for every set of argument types in use.
"""

import importlib
import time
from pathlib import Path

from varve.kernels.compile import KERNEL_DIRECTORY


def warm_all() -> list[tuple[str, float]]:
    """Full names of the modules that were warmed, with the seconds each took."""
    timings = []
    root = Path(__file__).parents[1]
    for path in sorted(root.glob(f"**/{KERNEL_DIRECTORY}/*.py")):
        if path.stem == "__main__":
            continue
        name = ".".join(path.relative_to(root.parent).with_suffix("").parts)
        warm = getattr(importlib.import_module(name), "warm", None)
        if warm is not None:
            started = time.perf_counter()
            warm()
            timings.append((name, time.perf_counter() - started))
    return timings


def main() -> None:
    timings = warm_all()
    for name, seconds in timings:
        print(f"{name:<40} {seconds:6.2f} s")
    print(f"{'all kernels':<40} {sum(seconds for _, seconds in timings):6.2f} s")


if __name__ == "__main__":
    main()
