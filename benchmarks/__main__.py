"""`python -m benchmarks NAME [--json] [--quick] [sizes…]`."""

from benchmarks.command import main

main()
