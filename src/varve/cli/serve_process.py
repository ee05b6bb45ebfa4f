"""What the process of a server asks of the system and of Python."""

import gc
import resource


def allow_files() -> None:
    """As many files as the system lets the process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def keep_what_is_there(thresholds: tuple[int, int, int] | None = None) -> None:
    """Collects garbage from now on, and never looks at what was imported and loaded.

    What of that is garbage already is small, and finding it takes a tenth of a second.
    """
    gc.freeze()
    if thresholds is not None:
        gc.set_threshold(*thresholds)
    gc.enable()
