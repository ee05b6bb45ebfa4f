"""What Spark's Python workers keep between tasks.

A worker walks all its objects for garbage after each task. Those of the imported modules, the
compiler's above all, are more than a hundred thousand and live as long as the worker.
"""

import gc
from functools import cache


@cache
def settle() -> None:
    """Once in a process, when a first task is done: leaves what is there out of collections."""
    gc.collect()
    gc.freeze()
