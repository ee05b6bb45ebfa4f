"""`varve tier mirror`: how the second object store of a cold tier differs, and what mends it.

Invariant  reads only without `--repair`, and never writes to the first store. It holds no lock of
           the log directory, so that it runs beside a store that is open.
Crash      objects are mended one by one: the next run finds what is left.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from varve.cli.byte_progress import phase_progress
from varve.cli.interrupts import interrupts_between, told_when_interrupted
from varve.cli.store_access import AsJson, Directory, check_exist
from varve.cli.tier_access import (
    MirrorUrl,
    StoreSettings,
    TierUrl,
    find_url,
    split_settings,
)
from varve.disk import RealFileSystem
from varve.embedded.tier_location import check_remembered, read_location
from varve.foundation.errors import InvalidRequest
from varve.foundation.units import format_bytes
from varve.object_store import (
    Difference,
    Fault,
    MirrorComparison,
    MirroredObjectStore,
    MirrorRepair,
    open_mirrored,
)

_SHOWN_COUNT: Final = 100
"""So many differences are printed for people."""


def command(
    directory: Directory,
    mirror_url: MirrorUrl = "",
    store_url: TierUrl = "",
    store_settings: StoreSettings = [],  # noqa: B006, typer reads it once
    repair: Annotated[
        bool, typer.Option("--repair", help="Copy what is missing or different to the second.")
    ] = False,
    delete_extra: Annotated[
        bool,
        typer.Option(
            "--delete-extra",
            help="Let a repair delete what the second store alone has; asks nothing.",
        ),
    ] = False,
    delete_last_copies: Annotated[
        bool,
        typer.Option(
            "--delete-last-copies",
            help="Let --delete-extra do so although the first store has less than what would go.",
        ),
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read all objects in both and compare their bytes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare the second object store of a cold tier with the first, and repair it.

    The lists of both are compared by key and size. The first store is the truth: what the second
    lacks or has otherwise is copied by --repair, what it has too much may be the last copy and is
    deleted only if told so. Where that is more than the first has at all, the first is rather the
    wrong store, not mounted or lost, and nothing is deleted unless --delete-last-copies says that
    it is none of these. Nothing is ever written to the first.

    It may run beside an open store; what that writes or deletes at the moment may be shown as
    different, and is no longer by the next run. Ctrl-C stops it between two pieces, and what was
    copied stays: run it again to go on. The exit status is 1 when the stores differ and were not
    repaired. With --json every line has `type`: difference or summary.

    \b
    Examples:
      varve tier mirror data
      varve tier mirror data --repair --deep
      varve tier mirror data --mirror s3://elsewhere/varve --store-setting mirror.region=eu-west-1
    """
    if delete_extra and not repair:
        raise typer.BadParameter("--delete-extra has a meaning with --repair only")
    if delete_last_copies and not delete_extra:
        raise typer.BadParameter("--delete-last-copies has a meaning with --delete-extra only")
    mirror = _open(directory, store_url, mirror_url, store_settings)
    try:
        with (
            told_when_interrupted("stopped; what was copied stays, run it again to go on"),
            phase_progress() as show,
            interrupts_between(show) as progress,
        ):
            comparison = mirror.compare(deep=deep, progress=progress)
            done = None
            if delete_extra and not delete_last_copies:
                _check_first(mirror, comparison)
            if repair:
                done = mirror.repair_differences(
                    comparison.differences, delete_extra=delete_extra, progress=progress
                )
    finally:
        mirror.close()
    if as_json:
        for document in _documents(mirror, comparison, done):
            sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
    else:
        _print(mirror, comparison, done)
    if not _is_level(comparison, done):
        raise typer.Exit(1)


def _open(
    directory: Path, store_url: str, mirror_url: str, settings: list[str]
) -> MirroredObjectStore:
    check_exist([directory])
    place = read_location(RealFileSystem(), str(directory))
    if place is not None:
        check_remembered("--store", store_url, place.url, str(directory))
        check_remembered("--mirror", mirror_url, place.mirror or mirror_url, str(directory))
        mirror_url = place.mirror or mirror_url
    if not mirror_url:
        raise InvalidRequest(
            f"the cold tier of {directory} has no mirror: give one with --mirror; a store that is "
            "opened with varve.tier.mirror.url writes to it"
        )
    first, second = split_settings(settings)
    url = find_url(store_url, str(directory))
    return open_mirrored(
        url,
        mirror_url,
        settings=first,
        second_settings=second,
        must_exist=place is not None,
    )


def _check_first(mirror: MirroredObjectStore, comparison: MirrorComparison) -> None:
    if comparison.is_first_poor:
        raise InvalidRequest(
            f"nothing was changed: {_sides(mirror, comparison)}. {_POOR}; if the first is right, "
            "and "
            "these may be the last copies of what they hold, say --delete-last-copies"
        )


_POOR: Final = (
    "The second alone has more than the first at all: check that the first is the right store, "
    "that it is mounted and was not emptied; if it was lost, copy the second back to it"
)


def _sides(mirror: MirroredObjectStore, comparison: MirrorComparison) -> str:
    extra = _of(comparison, Fault.EXTRA)
    return (
        f"{mirror.first_name} has {comparison.object_count:,} objects, "
        f"{format_bytes(comparison.total_bytes)}; "
        f"{mirror.second_name} has {comparison.second_count:,}, "
        f"{format_bytes(comparison.second_bytes)}, of them {len(extra):,} alone, "
        f"{format_bytes(sum(difference.size for difference in extra))}"
    )


def _is_level(comparison: MirrorComparison, done: MirrorRepair | None) -> bool:
    return not comparison.differences if done is None else not done.extra


def _documents(
    mirror: MirroredObjectStore, comparison: MirrorComparison, done: MirrorRepair | None
) -> Iterator[dict[str, Any]]:
    mended = set() if done is None else {*done.copied, *done.deleted}
    for difference in comparison.differences:
        yield {
            "type": "difference",
            "fault": str(difference.fault),
            "key": difference.key,
            "bytes": difference.size,
            "mended": difference.key in mended,
        }
    yield {
        "type": "summary",
        "first": mirror.first_name,
        "second": mirror.second_name,
        "objects": comparison.object_count,
        "bytes": comparison.total_bytes,
        "second_objects": comparison.second_count,
        "second_bytes": comparison.second_bytes,
        "is_first_poor": comparison.is_first_poor,
        **{str(fault): len(_of(comparison, fault)) for fault in Fault},
        "copied": 0 if done is None else len(done.copied),
        "deleted": 0 if done is None else len(done.deleted),
        "is_level": _is_level(comparison, done),
    }


def _of(comparison: MirrorComparison, fault: Fault) -> list[Difference]:
    return [difference for difference in comparison.differences if difference.fault is fault]


def _print(
    mirror: MirroredObjectStore, comparison: MirrorComparison, done: MirrorRepair | None
) -> None:
    for difference in comparison.differences[:_SHOWN_COUNT]:
        typer.echo(f"{difference.fault:9} {difference.key} ({format_bytes(difference.size)})")
    more = len(comparison.differences) - _SHOWN_COUNT
    if more > 0:
        typer.echo(f"and {more:,} more; --json shows all")
    all_objects = f"{comparison.object_count:,} objects, {format_bytes(comparison.total_bytes)}"
    if not comparison.differences:
        typer.echo(f"{mirror.second_name} has what {mirror.first_name} has: {all_objects}")
        return
    parts = []
    for fault, words in (
        (Fault.MISSING, "missing from"),
        (Fault.DIFFERENT, "different in"),
        (Fault.EXTRA, "too much in"),
    ):
        some = _of(comparison, fault)
        if some:
            size = format_bytes(sum(difference.size for difference in some))
            parts.append(f"{len(some):,} {words} {mirror.second_name} ({size})")
    typer.echo(f"{mirror.first_name} has {all_objects}; {', '.join(parts)}")
    if comparison.is_first_poor:
        typer.secho(f"{_sides(mirror, comparison)}. {_POOR}", fg="yellow")
    typer.echo(_outcome(comparison, done))


_DELETE_HINT: Final = "; --repair --delete-extra deletes what is too much"


def _outcome(comparison: MirrorComparison, done: MirrorRepair | None) -> str:
    if done is None:
        if len(_of(comparison, Fault.EXTRA)) == len(comparison.differences):
            what = "" if comparison.is_first_poor else _DELETE_HINT
            return f"nothing was changed{what}"
        return "nothing was changed; --repair copies what is missing or different"
    text = f"{len(done.copied):,} copied, {len(done.deleted):,} deleted"
    if done.extra:
        text += (
            f"; {len(done.extra):,} that only the second store has are left, as they may be the "
            "last copy"
        )
        if not comparison.is_first_poor:
            text += ": --delete-extra deletes them"
    return text
