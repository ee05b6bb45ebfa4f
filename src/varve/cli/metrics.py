"""`varve metrics`: the metrics of a directory in Prometheus' format."""

import click

from varve.cli import options
from varve.cli.command import command
from varve.cli.output import Output
from varve.cli.where import Where


@command("varve metrics -d data", "varve metrics -d data > /var/lib/node_exporter/varve.prom")
@options.directory
@options.output
def metrics(where: Where, output: Output) -> None:
    """Print the metrics of a log directory in Prometheus' format.

    It needs a directory that no process has open; a program adds `store.metrics` to its own
    registry. docs/reference/metrics.md describes each metric. Nothing is cleaned: the dirty ratio
    and the delay are current, counters of cleanings are 0, and uncleanable partitions are left out
    (`varve clean` and `varve check` show them). Metrics of a remote tier that does not respond are
    left out too, and the exit status is 1.
    """
    from varve.foundation.metrics import exposition

    with where.open_store(maintain=False) as store:
        store.measure()
        if output.is_json:
            for family in store.metrics.collect():
                for sample in family.samples:
                    fields = {"name": sample.name, "labels": sample.labels, "value": sample.value}
                    output.print_object("metric", fields)
        else:
            click.echo(exposition(store.metrics), nl=False)
        failures = store.health().tier
    for partition, failure in failures.items():
        output.print_partition_failure(partition, failure)
    if failures:
        raise click.exceptions.Exit(1)
