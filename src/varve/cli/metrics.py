"""`varve metrics`: the figures of a directory as Prometheus reads them."""

import sys

from varve.cli.store_access import Directory, open_existing


def command(directory: Directory) -> None:
    """Print the metrics of a log directory, as Prometheus reads them.

    For a directory that nobody has open: a program that has one open adds `store.metrics` to its
    own registry. docs/metrics.md tells what each means and Kafka's name for it. The dirty ratio
    and the delay are those of this moment, what counts cleanings is 0; nothing is cleaned. Which
    partitions cannot be cleaned is left out: only a program that cleans knows, and `varve clean`
    and `varve check` tell.

    \b
    Examples:
      varve metrics data
      varve metrics data > /var/lib/node_exporter/varve.prom
    """
    from varve.foundation.metrics import exposition

    with open_existing([directory], maintain=False) as store:
        store.measure()
        sys.stdout.write(exposition(store.metrics))
