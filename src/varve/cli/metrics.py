"""`varve metrics`: the figures of a directory as Prometheus reads them."""

import sys

import typer

from varve.cli.store_access import Directory, open_existing, tell_failure
from varve.cli.tier_access import StoreSettings, tier_settings


def command(
    directory: Directory,
    store_settings: StoreSettings = [],  # noqa: B006, typer reads it once
) -> None:
    """Print the metrics of a log directory, as Prometheus reads them.

    For a directory that nobody has open: a program that has one open adds `store.metrics` to its
    own registry. docs/metrics.md tells what each means and Kafka's name for it. The dirty ratio
    and the delay are those of this moment, what counts cleanings is 0; nothing is cleaned. Which
    partitions cannot be cleaned is left out: only a program that cleans knows, and `varve clean`
    and `varve check` tell. Those of the cold tier are there when a topic is in it; what its object
    store cannot tell now is left out, the exit status is 1 then.

    \b
    Examples:
      varve metrics data
      varve metrics data > /var/lib/node_exporter/varve.prom
    """
    from varve.foundation.metrics import exposition

    settings = tier_settings("", store_settings)
    with open_existing([directory], maintain=False, settings=settings) as store:
        store.measure()
        sys.stdout.write(exposition(store.metrics))
        failures = store.health().tier
    for partition, failure in failures.items():
        tell_failure(partition, failure)
    if failures:
        raise typer.Exit(1)
