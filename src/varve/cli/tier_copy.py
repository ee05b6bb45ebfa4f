"""`varve tier copy`: copies closed segments of tiered topics to object storage now."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from varve.cli.byte_progress import phase_progress
from varve.cli.interrupts import interrupts_between, told_when_interrupted
from varve.cli.store_access import (
    Directory,
    Wanted,
    find_topic,
    open_existing,
    parse_wanted,
    tell_failure,
)
from varve.cli.tier_access import MirrorUrl, StoreSettings, TierUrl, tier_settings
from varve.foundation.clock import SystemClock
from varve.foundation.errors import InvalidRequest
from varve.foundation.settings import GivenValue
from varve.object_store import MirroredObjectStore
from varve.tiering.copy.copier import CopyProgress, CopyReport

if TYPE_CHECKING:
    from varve.embedded import Store

_CATCH_UP_MS: Final = 60_000
"""More than that is work for `varve tier mirror --repair`."""


def command(
    directory: Directory,
    wanted: Wanted = None,
    store_url: TierUrl = "",
    store_settings: StoreSettings = [],  # noqa: B006, typer reads it once
    mirror_url: MirrorUrl = "",
    roll: Annotated[
        bool,
        typer.Option("--roll", help="Close the active segments first: only closed ones go."),
    ] = False,
    rate: Annotated[
        int | None, typer.Option(min=1, metavar="BYTES", help="At most so many bytes per second.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per partition.")] = False,
) -> None:
    """Copy closed segments to object storage.

    Topics with remote.storage.enable=true are copied, or the one that is named: every closed
    segment whose transactions are decided, oldest first, with all its files. The local files stay.
    Ctrl-C stops it between two chunks, and it may be run again: what is copied stays, what was
    begun is finished or taken back. The exit status is 1 when a partition fails.

    \b
    Examples:
      varve tier copy data --store file:/backup/tier
      varve tier copy data orders:0 --roll --store s3://bucket/varve --json
    """
    settings = tier_settings(store_url, store_settings, mirror_url)
    if rate is not None:
        settings["remote.log.manager.copy.max.bytes.per.second"] = rate
    sentence = "stopped; what is copied stays, run it again to go on"
    with told_when_interrupted(sentence):
        is_well = _copy(directory, wanted, settings, roll=roll, as_json=as_json)
    if not is_well:
        raise typer.Exit(1)


def _copy(
    directory: Path,
    wanted: str | None,
    settings: dict[str, GivenValue],
    *,
    roll: bool,
    as_json: bool,
) -> bool:
    topic, partition = parse_wanted(wanted)
    is_well = True
    with open_existing([directory], maintain=False, settings=settings) as store:
        if topic is not None:
            _check_tiered(find_topic(store, topic))
        chosen = [
            topic_partition
            for topic_partition in store.partitions(topic, partition)
            if store.topic(topic_partition.topic).settings.copies_to_tier
        ]
        for topic_partition in chosen:
            if roll:
                store.topic(topic_partition.topic).partition(topic_partition.partition).log.roll()
            with _progress() as show, interrupts_between(show) as progress:
                report = store.tier.copy(topic_partition, SystemClock().now_ms(), progress=progress)
            is_well = is_well and report.error is None
            _tell(report, as_json=as_json)
        if chosen:
            _look_after_mirror(store)
    if not chosen:
        typer.secho(
            "no topic is to be copied: `varve log configure TOPIC remote.storage.enable=true "
            "remote.log.copy.disable=false` makes one so",
            fg="yellow",
            err=True,
        )
    return is_well


def _look_after_mirror(store: "Store") -> None:
    """What the mirror lacks goes there now, or is told: who ends forgets what it was."""
    mirror = store.tier.objects
    if isinstance(mirror, MirroredObjectStore):
        mirror.catch_up(within_ms=_CATCH_UP_MS)
        trouble = mirror.trouble()
        if trouble:
            typer.secho(trouble, fg="yellow", err=True)


def _check_tiered(topic: Any) -> None:
    if not topic.settings.copies_to_tier:
        raise InvalidRequest(
            f"topic {topic.name} is not to be copied: remote.storage.enable is "
            f"{str(topic.settings.remote_storage_enable).lower()} and remote.log.copy.disable "
            f"{str(topic.settings.remote_log_copy_disable).lower()}; `varve log configure "
            f"{topic.name} remote.storage.enable=true remote.log.copy.disable=false` changes that"
        )


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[CopyProgress], None]]:
    with phase_progress() as show:
        yield lambda progress: show(
            f"{progress.partition} copy", progress.done_bytes, progress.total_bytes
        )


def _tell(report: CopyReport, *, as_json: bool) -> None:
    if as_json:
        document = {
            "partition": str(report.partition),
            "copied_offset": report.copied_offset,
            "segments": len(report.segments),
            "log_bytes": report.log_bytes,
            "stored_bytes": report.stored_bytes,
            "resumed": report.resumed_count,
            "removed": report.removed_count,
            "error": report.error,
        }
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        count = len(report.segments)
        what = "nothing to copy" if report.error is None else "nothing was copied: it failed"
        if count:
            what = f"{count} segment{'' if count == 1 else 's'} copied, {report.log_bytes:,} bytes"
        if report.copied_offset is not None:
            what += f"; copied up to offset {report.copied_offset}"
        typer.secho(f"{report.partition}  ", bold=True, nl=False)
        typer.echo(what)
        if report.resumed_count:
            typer.echo(f"    {report.resumed_count} had been uploaded before")
        if report.removed_count:
            typer.echo(f"    {report.removed_count} unfinished or replaced ones removed")
    if report.error is not None:
        tell_failure(report.partition, report.error)
