"""`varve dedup stats`: how far a deduplication is, and what its ids take."""

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from varve.cli.dedup_options import (
    Broker,
    ClientFile,
    ClientSettings,
    DedupPlace,
    Directories,
    KnownName,
    State,
    make_place,
)
from varve.cli.dedup_table import PartitionRow, print_rows
from varve.cli.store_access import AsJson

if TYPE_CHECKING:
    from varve.dedup.insight import DedupInsight, PartitionInsight


def command(
    name: KnownName,
    state: State = None,
    directories: Directories = [],  # noqa: B006, typer copies it
    broker: Broker = None,
    settings: ClientSettings = [],  # noqa: B006
    file: ClientFile = None,
    as_json: AsJson = False,
) -> None:
    """Show how far each partition of a deduplication is, and what its ids take.

    Position and counts are those of the last commit; counts are of its whole life. Segments, ids
    and size are those of the state directory, as far as it was flushed, and are left out where it
    lies on another machine. Behind a broker this may be asked while it runs.

    \b
    Examples:
      varve dedup stats orders-once --dir data
      varve dedup stats clicks-once --bootstrap-server localhost:9092 --state /var/lib/clicks --json
    """
    place = make_place(directories, broker, settings, file, state)
    with open_insight(place, name) as insight:
        found, count = insight.partitions(), insight.partition_count()
    rows = [_row(partition_insight) for partition_insight in found]
    if as_json:
        for partition_insight, row in zip(found, rows, strict=True):
            progress = partition_insight.progress
            told = {
                "name": name,
                "input": progress.input,
                "output": progress.output,
                "rules": progress.rules.fingerprint(),
                "committed_ms": progress.committed_ms,
            }
            typer.echo(json.dumps({"type": "partition", **told, **row.to_json()}))
    elif not rows:
        typer.echo(f"{name} has committed nothing yet", err=True)
    else:
        first = found[0].progress
        typer.echo(f"{first.input} to {first.output} {first.rules.fingerprint()}")
        print_rows(rows)
        if len(rows) < count:
            typer.echo(
                f"{count - len(rows)} of {count} partitions: nothing committed yet", err=True
            )


@contextlib.contextmanager
def open_insight(place: DedupPlace, name: str) -> "Iterator[DedupInsight]":
    """A look at a deduplication; the store is open meanwhile."""
    from varve.dedup.insight import DedupInsight
    from varve.disk import RealFileSystem
    from varve.topics import open_cluster

    with place.open() as opened:
        insight = DedupInsight(
            open_cluster(opened),
            name,
            state_directory=str(place.state),
            file_system=RealFileSystem(),
        )
        try:
            yield insight
        finally:
            insight.close()


def _row(insight: "PartitionInsight") -> PartitionRow:
    state = insight.state
    return PartitionRow(
        partition=insight.partition,
        position=insight.progress.position,
        lag=insight.lag,
        stream_time_ms=insight.progress.stream_time_ms,
        counts=insight.progress.counts,
        segments=None if state is None else len(state.paths),
        ids=None if state is None else _count_ids(state.paths),
        bytes=None if state is None else state.bytes,
    )


def _count_ids(paths: Sequence[str]) -> int:
    """About how many ids lie in the segments' files."""
    from varve.rocks.database import estimate_entries

    return sum(estimate_entries(path) for path in paths)
