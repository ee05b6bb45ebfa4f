"""`varve job ship`: one archive of what executors need to run varve's jobs."""

import json
from typing import TYPE_CHECKING, Annotated, Final

import typer

from varve.cli.store_access import AsJson
from varve.foundation.units import format_bytes

if TYPE_CHECKING:
    from varve.spark.ship import Shipment

_NAME: Final = "varve-env.tar.gz"


def command(
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="The archive; .tar is made faster than .tar.gz and is three times as large.",
        ),
    ] = _NAME,
    as_json: AsJson = False,
) -> None:
    """Pack what executors need: varve and every package it stands on, as installed here.

    Spark copies the archive to each executor once and unpacks it there. Nothing is installed on
    the cluster but Spark and a Python of the same minor version, on the same platform. PySpark is
    the cluster's own and not in the archive. Then give it to any job, as --conf varve.ship=PATH or
    in VARVE_SPARK_SHIP; without varve's command, with the lines that are printed.

    \b
    Examples:
      varve job ship --output varve-env.tar.gz
      varve job compact --dir data --master spark://host:7077 --conf varve.ship=varve-env.tar.gz
    """
    from varve.spark.ship import ship

    shipment = ship(output)
    if as_json:
        typer.echo(json.dumps(shipment.to_json()))
    else:
        _print(shipment)


def _print(shipment: "Shipment") -> None:
    typer.echo(
        f"{shipment.path}: {format_bytes(shipment.size)}, {len(shipment.packages)} packages, "
        f"varve {shipment.varve}, for Python {shipment.python} on {shipment.platform}"
    )
    typer.echo("\nwith varve's own commands:")
    typer.echo(f"  --conf varve.ship={shipment.path}")
    typer.echo("\nwith spark-submit, or for a server of Spark Connect:")
    for name, value in shipment.conf.items():
        typer.echo(f"  --conf {name}={value}")
    typer.echo(f"  and in the environment: PYSPARK_PYTHON=python{shipment.python}")
