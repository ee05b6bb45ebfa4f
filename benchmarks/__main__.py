"""`python -m benchmarks NAME [--json] [--quick] [sizes…]`."""

import time

STARTED = time.perf_counter()  # importing the compiler and the client libraries counts too

from benchmarks.command import main  # noqa: E402  # see above

main(started=STARTED)
