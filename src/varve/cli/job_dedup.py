"""`varve job dedup`: a topic without its duplicates, as another topic or as a table.

Crash      a run may be killed anywhere; the next one with the same checkpoint goes on.
"""

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from varve.cli.job_options import Conf, Master, ReportPath, find_address, spark_options
from varve.cli.job_run import open_job, tell_report, write_report
from varve.cli.store_access import AsJson, parse_setting
from varve.cli.tier_access import Cluster, StoreSettings, TierUrl
from varve.disk import RealFileSystem
from varve.embedded.tier_location import read_location
from varve.foundation.errors import InvalidRequest
from varve.foundation.units import parse_duration

if TYPE_CHECKING:
    from varve.spark.dedup.job import DedupOutput, DedupSource
    from varve.spark.dedup.settings import DedupBatch, DedupResult, DedupSettings

_TABLE: Final = "table:"
_TABLES: Final = ".tables"
_WHEN_INTERRUPTED: Final = (
    "stopped; what was written stays, and the next run with this checkpoint goes on"
)


def command(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic that is read.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TOPIC|table:NS.NAME",
            help="The topic or the Iceberg table that gets the records; made if need be.",
        ),
    ],
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="key|header:NAME|field:PATH",
            help="What copies have in common: the key, a header, or a field of JSON values.",
        ),
    ],
    window: Annotated[
        str,
        typer.Option(
            "--window",
            metavar="SPAN",
            help="How far apart in event time copies may be, either way: 10m, 1h30m, 7d.",
        ),
    ],
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint",
            metavar="PATH",
            help="Where offsets and state are kept; one for each deduplication.",
        ),
    ],
    before: Annotated[
        str | None,
        typer.Option("--before", metavar="SPAN", help="How far back, in place of --window."),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="SPAN", help="How far ahead, in place of --window."),
    ] = None,
    lateness: Annotated[
        str | None,
        typer.Option(
            "--lateness",
            metavar="SPAN",
            help="How far behind the newest record one may be and still be compared; at first the "
            "window.",
        ),
    ] = None,
    late: Annotated[
        str,
        typer.Option(
            "--late",
            metavar="forward|drop|side:TOPIC",
            help="What becomes of a later one, and of one from the future.",
        ),
    ] = "forward",
    null: Annotated[
        str,
        typer.Option("--null", metavar="forward|drop", help="And of one that has no id."),
    ] = "forward",
    refresh: Annotated[
        bool, typer.Option("--refresh", help="A duplicate begins the window of its id anew.")
    ] = False,
    max_future: Annotated[
        str,
        typer.Option(
            "--max-future", metavar="SPAN", help="A record further ahead of now moves no clock."
        ),
    ] = "1h",
    available_now: Annotated[
        bool, typer.Option("--available-now", help="End with what is there; this is the default.")
    ] = False,
    interval: Annotated[
        str | None,
        typer.Option("--interval", metavar="SPAN", help="Go on, with a batch every so often."),
    ] = None,
    batch_bytes: Annotated[
        int | None,
        typer.Option(
            "--batch-bytes", metavar="BYTES", min=1, help="About how much of the log a batch takes."
        ),
    ] = None,
    state_partitions: Annotated[
        int | None,
        typer.Option(
            "--state-partitions",
            metavar="COUNT",
            min=1,
            help="Into how many parts the state is cut; decided by the first run, at first one for "
            "each core.",
        ),
    ] = None,
    warehouse: Annotated[
        str | None,
        typer.Option(
            "--warehouse",
            metavar="URL",
            help="Where tables lie; with --dir at first DIRECTORY.tables.",
        ),
    ] = None,
    catalog: Annotated[
        str | None,
        typer.Option("--catalog", metavar="URI", help="The catalog, as of `varve job table`."),
    ] = None,
    catalog_settings: Annotated[
        list[str],
        typer.Option(
            "--catalog-setting", metavar="NAME=VALUE", help="A setting of the catalog; repeatable."
        ),
    ] = [],  # noqa: B006 - typer copies it, and shows no default
    format: Annotated[
        str, typer.Option("--format", metavar="raw|json", help="What values are, for a table.")
    ] = "raw",
    directories: Annotated[
        list[str],
        typer.Option(
            "--dir",
            "-d",
            envvar="VARVE_DIR",
            metavar="PATH",
            help="A log directory of the topic; repeatable. The output topic lies there too.",
        ),
    ] = [],  # noqa: B006
    store_url: TierUrl = "",
    store_settings: StoreSettings = [],  # noqa: B006
    cluster: Cluster = None,
    as_json: AsJson = False,
    master: Master = None,
    conf: Conf = [],  # noqa: B006
    report: ReportPath = None,
) -> None:
    """Copy a topic without its duplicates, to another topic or to a table.

    A record is a duplicate if a record of the same id was kept whose event time is within the
    window around its own. The first one that is read wins. Records without an id, late ones and
    ones from the future go by --null and --late; each is counted.

    What is remembered lies in the checkpoint, in Spark's RocksDB state store. A run may be killed
    or repeated: every batch is written once. Run it again to go on, or let it go on with
    --interval. The meaning of a checkpoint cannot be changed: another window needs a new one.

    With --json every line has `type`: batch, dedup or report.

    \b
    Examples:
      varve job dedup orders --to orders-once --by key --window 10m --checkpoint ck --dir data
      varve job dedup clicks --to clicks-once --by header:id --window 1h --late side:clicks-late \\
        --interval 10s --checkpoint ck --dir data
      varve job dedup orders --to table:shop.orders --by field:order.id --window 7d --format json \\
        --checkpoint ck --dir data
    """
    if available_now and interval is not None:
        raise typer.BadParameter("--available-now ends, --interval goes on: give one of them")
    interval_ms = None if interval is None else parse_duration(interval, name="--interval")
    spans = _parse_spans(window, before, after, lateness, max_future)
    settings = _make_settings(by, spans, late, null, refresh, batch_bytes, state_partitions)
    paths = tuple(map(os.path.abspath, directories))
    source = _make_source(topic, paths, store_url, store_settings, cluster)
    output = _make_output(to, paths, warehouse, catalog, catalog_settings, format)
    options = spark_options(master, conf)
    with open_job("dedup", options, when_interrupted=_WHEN_INTERRUPTED) as job:
        from varve.spark.dedup.job import dedup

        result = job.run(
            lambda: dedup(
                source,
                output,
                settings,
                spark=job.spark,
                checkpoint=_absolute(checkpoint),
                interval_ms=interval_ms,
                on_batch=_teller(as_json=as_json, is_following=interval_ms is not None),
            )
        )
        done = job.report(result.counts.total, result.to_json())
    if report is not None:
        write_report(done, report)
    if as_json:
        typer.echo(json.dumps({"type": "dedup", **result.to_json()}))
        typer.echo(json.dumps({"type": "report", **done.to_document()}))
    else:
        print_result(result)
        tell_report(done)


def print_result(result: "DedupResult") -> None:
    """One line of counts."""
    from varve.cli.screen import make_console, print_rows_with_details

    counts = result.counts
    columns = ("output", "batches", "records", "kept", "duplicates", "late", "future", "no id")
    numbers = (
        result.batch_count,
        counts.total,
        counts.kept,
        counts.duplicates,
        counts.late,
        counts.future,
        counts.no_id,
    )
    cells = (result.output, *(f"{number:,}" for number in numbers))
    print_rows_with_details(make_console(), columns, [cells], [[]], left=("output",))


def _teller(*, as_json: bool, is_following: bool) -> "Callable[[DedupBatch], None] | None":
    """What is said of a batch: all of it as JSON, a line where the job goes on."""
    if as_json:
        return lambda batch: typer.echo(json.dumps({"type": "batch", **batch.to_json()}))
    if not is_following:
        return None

    def tell(batch: "DedupBatch") -> None:
        counts = batch.counts
        typer.echo(
            f"batch {batch.batch_id}: {counts.total:,} records, {counts.kept:,} kept, "
            f"{counts.duplicates:,} duplicates, {counts.late:,} late, {counts.future:,} future, "
            f"{counts.no_id:,} without id"
        )

    return tell


def _parse_spans(
    window: str, before: str | None, after: str | None, lateness: str | None, max_future: str
) -> dict[str, int]:
    """Milliseconds by what they are for."""
    window_ms = parse_duration(window, name="--window")
    return {
        "before": window_ms if before is None else parse_duration(before, name="--before"),
        "after": window_ms if after is None else parse_duration(after, name="--after"),
        "lateness": window_ms if lateness is None else parse_duration(lateness, name="--lateness"),
        "future": parse_duration(max_future, name="--max-future"),
    }


def _make_settings(
    by: str,
    spans: dict[str, int],
    late: str,
    null: str,
    refresh: bool,
    batch_bytes: int | None,
    state_partitions: int | None,
) -> "DedupSettings":
    from varve.dedup.rules import NullPolicy, parse_id_source, parse_late_policy
    from varve.spark.dedup.settings import BATCH_BYTES, DedupSettings

    if null not in list(NullPolicy):
        raise InvalidRequest(f"--null {null!r:.80} is no policy: write forward or drop")
    policy, side_topic = parse_late_policy(late)
    return DedupSettings(
        by=parse_id_source(by),
        before_ms=spans["before"],
        after_ms=spans["after"],
        lateness_ms=spans["lateness"],
        max_future_ms=spans["future"],
        late=policy,
        side_topic=side_topic,
        null=NullPolicy(null),
        is_refreshing=refresh,
        batch_bytes=batch_bytes or BATCH_BYTES,
        state_partitions=state_partitions,
    )


def _make_source(
    topic: str,
    directories: tuple[str, ...],
    url: str,
    settings: list[str],
    cluster: str | None,
) -> "DedupSource":
    from varve.spark.dedup.job import DedupSource

    fs = RealFileSystem()
    homes = [directory for directory in directories if read_location(fs, directory) is not None]
    if directories and not url and not homes:
        return DedupSource(topic, None, directories)
    home = homes[0] if homes else None
    return DedupSource(topic, find_address(url, settings, home, cluster), directories)


def _make_output(
    to: str,
    directories: tuple[str, ...],
    warehouse: str | None,
    catalog: str | None,
    settings: list[str],
    format: str,
) -> "DedupOutput":
    if not to.startswith(_TABLE):
        from varve.spark.dedup.outputs import TopicOutput

        if not directories:
            raise InvalidRequest("--dir is missing: the log directory of the output topic")
        return TopicOutput(directories=directories, topic=to)
    from varve.jobs.table.catalog import CatalogAddress
    from varve.jobs.table.definition import TableSettings, ValueFormat
    from varve.spark.dedup.outputs import TableOutput

    if format not in (ValueFormat.RAW, ValueFormat.JSON):
        raise InvalidRequest(f"--format {format!r:.80}: write raw or json")
    if warehouse is None and catalog is None and directories:
        warehouse = directories[0] + _TABLES
    given = tuple(parse_setting(text) for text in settings)
    return TableOutput(
        catalog=CatalogAddress(warehouse, catalog, given),
        name=to.removeprefix(_TABLE),
        settings=TableSettings(format=ValueFormat(format)),
    )


def _absolute(path: str) -> str:
    """A path without a scheme is this machine's, wherever Spark stands."""
    return path if "://" in path else os.path.abspath(path)
