"""`varve tier fsck` and `mirror`: the objects of a remote tier, and of its second store.

Invariant  reads only without `--sweep` and `--repair`, also while a store has the tier open, and
           the first store of a mirror is never written.
Crash      objects are removed and copied one by one: the next run finds what is left.
"""

import contextlib
import random
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from varve.cli import options
from varve.cli.command import command
from varve.cli.output import Grouped, Money, Output, interruptible_progress, note_interrupt
from varve.cli.where import TierWhere, check_exist
from varve.foundation.clock import SystemClock
from varve.foundation.errors import InvalidRequest
from varve.foundation.units import format_bytes, format_count

if TYPE_CHECKING:
    from varve.object_store import (
        Difference,
        Fault,
        MirrorComparison,
        MirroredObjectStore,
        MirrorRepair,
    )
    from varve.tiering.fsck import FsckReport

_PRINTED_COUNT: Final = 100
"""Differences that are printed for people."""


@command(
    "varve tier fsck -d data --deep",
    "varve tier fsck --store s3://bucket/varve --sweep --keep-versions 7d --yes",
)
@click.option("--deep", is_flag=True, help="Read all live objects and compare their checksums.")
@click.option("--sweep", is_flag=True, help="Remove orphans, and objects that are overdue.")
@options.duration(
    "--keep-versions",
    help="With --sweep: also remove manifest versions that were replaced before, as 7d.",
)
@options.yes
@options.bucket
@options.output
def tier_fsck(
    where: TierWhere,
    output: Output,
    deep: bool,
    sweep: bool,
    keep_versions: int | None,
    yes: bool,
) -> None:
    """Account for every object of a cluster, in bytes and money.

    Live objects are in the newest manifests, pending ones belong to an announced copy, retained
    ones are in older manifests or wait for removal, orphans were left by a crash, foreign ones are
    not varve's and are never touched.

    Stores may copy meanwhile: a sweep reads the newest manifest again before each removal, and
    skips a partition whose manifest cannot be read. The exit status is 1 if there are orphans that
    were not swept, foreign objects or damage. With --json a line has the `type` class, object or
    summary; the class of an object may also be damaged or removed.
    """
    from varve.tiering.fsck import FsckOptions, fsck
    from varve.tiering.manifest.paths import choose_cluster

    if keep_versions is not None and not sweep:
        raise click.UsageError("--keep-versions needs --sweep")
    sentence = "stopped; only what a sweep had removed is gone, run it again to continue"
    with contextlib.closing(where.open_objects()) as objects, note_interrupt(output, sentence):
        cluster = choose_cluster(objects, where.cluster)
        if sweep:
            action = f"remove orphans and overdue objects of {cluster} from {objects.name}"
            output.confirm(action, is_confirmed=yes)
        pause = threading.Event()
        with interruptible_progress(output) as show:
            report = fsck(
                objects,
                cluster,
                now_ms=SystemClock().now_ms(),
                options=FsckOptions(deep=deep, sweep=sweep, retention_ms=keep_versions),
                random=random.Random(),
                wait=lambda wait_ms: pause.wait(wait_ms / 1000),
                progress=lambda path, done, total: show(str(path), done, total),
            )
    _print_fsck(output, report, is_deep=deep)
    if not report.is_clean:
        raise click.exceptions.Exit(1)


def _print_fsck(output: Output, report: "FsckReport", *, is_deep: bool) -> None:
    from varve.tiering.fsck import ObjectClass

    total, prices = report.total, report.prices
    classes = [
        [
            str(kind),
            total.objects[kind],
            Grouped(total.bytes[kind]),
            Money(report.cost_per_month(kind)),
        ]
        for kind in ObjectClass
    ]
    output.print_table("class", ["class", "objects", "bytes", "cost per month"], classes)
    objects = list(_select_objects(report))
    if objects:
        output.print_table("object", ["class", "key", "bytes", "reason"], objects)
    verified = f", {format_bytes(report.verified_bytes)} read and verified" if is_deep else ""
    state = "nothing wrong" if report.is_clean else f"{len(report.damage)} damaged"
    count = format_count(len(report.partitions), "partition")
    cost = f"prices in {prices.currency}: {prices.name}, {prices.as_of}"
    if prices.name == "free":
        cost = "a directory costs nothing"
    output.print_result(
        f"{report.store}, {report.cluster}: {count}, {state}{verified}; {cost}",
        "summary",
        store=report.store,
        cluster=report.cluster,
        partitions=len(report.partitions),
        prices=prices.name,
        prices_as_of=prices.as_of,
        currency=prices.currency,
        verified_bytes=report.verified_bytes,
        is_clean=report.is_clean,
    )


def _select_objects(report: "FsckReport") -> Iterator[list[object]]:
    """The objects that are listed, as class, key, size and reason; live ones are not."""
    from varve.tiering.fsck import ObjectClass

    foreign = [
        listed
        for partition in report.partitions
        for listed in partition.listed
        if listed.kind is ObjectClass.FOREIGN
    ]
    for listed in [*report.orphans, *foreign]:
        yield [str(listed.kind), listed.key, Grouped(listed.size), listed.reason]
    for entry in report.foreign:
        reason = "not a name that varve uses"
        yield [str(ObjectClass.FOREIGN), entry.key, Grouped(entry.size), reason]
    for damage in report.damage:
        yield ["damaged", damage.key, None, damage.message]
    for listed in report.swept:
        yield ["removed", listed.key, Grouped(listed.size), listed.reason]


# Mirror


_CHECK_FIRST: Final = (
    "The second store alone has more than the first in total: check that the first is the right "
    "store, is mounted and was not emptied; if it was lost, copy the second back to it"
)
_DELETE_HINT: Final = "; --repair --delete-extra deletes what is extra"


@command(
    "varve tier mirror -d data --repair --deep",
    "varve tier mirror -d data --mirror s3://other/varve --store-set mirror.region=eu-west-1",
)
@click.option("--deep", is_flag=True, help="Read all objects in both and compare their bytes.")
@click.option("--repair", is_flag=True, help="Copy what is missing or different to the second.")
@click.option(
    "--delete-extra", is_flag=True, help="With --repair: delete what only the second store has."
)
@click.option(
    "--delete-last-copies",
    is_flag=True,
    help="With --delete-extra: do so even if the first store has less than would be deleted.",
)
@options.yes
@options.mirrored_tier
@options.output
def tier_mirror(
    where: TierWhere,
    output: Output,
    deep: bool,
    repair: bool,
    delete_extra: bool,
    delete_last_copies: bool,
    yes: bool,
) -> None:
    """Compare the second object store of a tier with the first, and repair it.

    Objects are compared by key and size. The first store is never written. What only the second
    has may be the last copy: it is deleted with --delete-extra only, and if that is more than the
    first has in total, with --delete-last-copies only.

    A store may have the directory open; its writes in progress may appear as differences. Ctrl-C
    stops between two chunks, and the next run continues. The exit status is 1 if the stores differ
    and were not repaired. With --json a line has the `type` difference or summary.
    """
    if delete_extra and not repair:
        raise click.UsageError("--delete-extra needs --repair")
    if delete_last_copies and not delete_extra:
        raise click.UsageError("--delete-last-copies needs --delete-extra")
    sentence = "stopped; what was copied stays, run it again to continue"
    done: MirrorRepair | None = None
    with contextlib.closing(_open_mirror(where)) as stores, note_interrupt(output, sentence):
        with interruptible_progress(output) as progress:
            comparison = stores.compare(deep=deep, progress=progress)
        if delete_extra and not delete_last_copies and comparison.is_first_poor:
            raise InvalidRequest(
                f"nothing was changed: {_describe_stores(stores, comparison)}. {_CHECK_FIRST}; if "
                "the first is right, and these may be the last copies, add --delete-last-copies"
            )
        if repair:
            _confirm_repair(output, stores, comparison, delete_extra=delete_extra, yes=yes)
            with interruptible_progress(output) as progress:
                done = stores.repair_differences(
                    comparison.differences, delete_extra=delete_extra, progress=progress
                )
    _print_mirror(output, stores, comparison, done)
    if not _is_in_sync(comparison, done):
        raise click.exceptions.Exit(1)


def _open_mirror(where: TierWhere) -> "MirroredObjectStore":
    from varve.embedded.store_settings import split_store_settings
    from varve.embedded.tier_location import check_object_manifests, check_remembered
    from varve.object_store import open_mirrored

    check_exist(where.directories)
    directory = str(where.directories[0])
    location = where.tier_location()
    mirror_url = where.mirror_url
    if location is not None:
        check_object_manifests(location, directory)
        check_remembered("--store", where.store_url, location.url, directory)
        check_remembered("--mirror", mirror_url, location.mirror or mirror_url, directory)
        mirror_url = location.mirror or mirror_url
    if not mirror_url:
        raise InvalidRequest(
            f"the remote tier of {directory} has no mirror; name one with --mirror. A store that "
            "is opened with varve.tier.mirror.url writes to it"
        )
    first, second = split_store_settings(where.store_settings)
    return open_mirrored(
        where.find_store_url(),
        mirror_url,
        settings=first,
        second_settings=second,
        must_exist=location is not None,
    )


def _confirm_repair(
    output: Output,
    stores: "MirroredObjectStore",
    comparison: "MirrorComparison",
    *,
    delete_extra: bool,
    yes: bool,
) -> None:
    from varve.object_store import Fault

    extra_count = len(_select(comparison, Fault.EXTRA))
    copied_count = len(comparison.differences) - extra_count
    deleted = f" and delete {format_count(extra_count, 'object')}" if delete_extra else ""
    if copied_count or (delete_extra and extra_count):
        copied = format_count(copied_count, "object")
        output.confirm(f"copy {copied} to {stores.second_name}{deleted}", is_confirmed=yes)


def _describe_stores(stores: "MirroredObjectStore", comparison: "MirrorComparison") -> str:
    from varve.object_store import Fault

    extra = _select(comparison, Fault.EXTRA)
    return (
        f"{stores.first_name} has {comparison.object_count:,} objects, "
        f"{format_bytes(comparison.total_bytes)}; "
        f"{stores.second_name} has {comparison.second_count:,}, "
        f"{format_bytes(comparison.second_bytes)}, of them {len(extra):,} alone, "
        f"{format_bytes(sum(difference.size for difference in extra))}"
    )


def _is_in_sync(comparison: "MirrorComparison", done: "MirrorRepair | None") -> bool:
    return not comparison.differences if done is None else not done.extra


def _select(comparison: "MirrorComparison", fault: "Fault") -> "list[Difference]":
    return [difference for difference in comparison.differences if difference.fault is fault]


def _print_mirror(
    output: Output,
    stores: "MirroredObjectStore",
    comparison: "MirrorComparison",
    done: "MirrorRepair | None",
) -> None:
    from varve.object_store import Fault

    repaired = set() if done is None else {*done.copied, *done.deleted}
    rows = [
        [str(difference.fault), difference.key, difference.size, difference.key in repaired]
        for difference in comparison.differences
    ]
    shown = rows if output.is_json else rows[:_PRINTED_COUNT]
    if shown:
        output.print_table("difference", ["fault", "key", "bytes", "repaired"], shown)
    if len(shown) < len(rows):
        click.echo(f"and {len(rows) - len(shown):,} more; --json prints all")
    output.print_result(
        _summarize_mirror(stores, comparison, done),
        "summary",
        first=stores.first_name,
        second=stores.second_name,
        objects=comparison.object_count,
        bytes=comparison.total_bytes,
        second_objects=comparison.second_count,
        second_bytes=comparison.second_bytes,
        is_first_poor=comparison.is_first_poor,
        missing=len(_select(comparison, Fault.MISSING)),
        different=len(_select(comparison, Fault.DIFFERENT)),
        extra=len(_select(comparison, Fault.EXTRA)),
        copied=0 if done is None else len(done.copied),
        deleted=0 if done is None else len(done.deleted),
        is_in_sync=_is_in_sync(comparison, done),
    )


def _summarize_mirror(
    stores: "MirroredObjectStore", comparison: "MirrorComparison", done: "MirrorRepair | None"
) -> str:
    from varve.object_store import Fault

    held = f"{comparison.object_count:,} objects, {format_bytes(comparison.total_bytes)}"
    if not comparison.differences:
        return f"{stores.second_name} has what {stores.first_name} has: {held}"
    parts = []
    for fault, words in (
        (Fault.MISSING, "missing from"),
        (Fault.DIFFERENT, "different in"),
        (Fault.EXTRA, "extra in"),
    ):
        if chosen := _select(comparison, fault):
            size = format_bytes(sum(difference.size for difference in chosen))
            parts.append(f"{len(chosen):,} {words} {stores.second_name} ({size})")
    lines = [f"{stores.first_name} has {held}; {', '.join(parts)}"]
    if comparison.is_first_poor:
        lines.append(f"{_describe_stores(stores, comparison)}. {_CHECK_FIRST}")
    return "\n".join([*lines, _describe_outcome(comparison, done)])


def _describe_outcome(comparison: "MirrorComparison", done: "MirrorRepair | None") -> str:
    from varve.object_store import Fault

    if done is None:
        if len(_select(comparison, Fault.EXTRA)) == len(comparison.differences):
            return f"nothing was changed{'' if comparison.is_first_poor else _DELETE_HINT}"
        return "nothing was changed; --repair copies what is missing or different"
    text = f"{len(done.copied):,} copied, {len(done.deleted):,} deleted"
    if done.extra:
        text += (
            f"; {len(done.extra):,} that only the second store has may be the last copy and stay"
        )
        if not comparison.is_first_poor:
            text += ": --delete-extra deletes them"
    return text
