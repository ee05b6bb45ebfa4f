"""`varve dedup explain`: why a record was kept or dropped, and what rules will cost."""

import json
import math
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from varve.cli.dedup_options import (
    After,
    Before,
    Broker,
    ClientFile,
    ClientSettings,
    DedupPlace,
    Directories,
    Lateness,
    Refresh,
    State,
    make_place,
    make_rules,
)
from varve.cli.dedup_stats import open_insight
from varve.cli.dedup_table import tell_time
from varve.cli.store_access import AsJson
from varve.foundation.errors import InvalidRequest, NotFound
from varve.foundation.units import format_bytes

if TYPE_CHECKING:
    from varve.dedup.insight import Explanation
    from varve.dedup.rules import DedupRules

_DAY_MS: Final = 24 * 3_600_000
_DISK_BYTES: Final = 48
"""Of an id in a segment: key and value, RocksDB's own, its filter, and slack for compaction."""
_CHANGELOG_BYTES: Final = 50
"""Of an entry in the changelog, uncompressed."""

_RATE_MAX: Final = 1e15
_BY_LAST_RULES: Final = ", if the rules were those of the last commit"
"""Policies and the lateness may have been others when the record was read; nobody notes that."""


def command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A deduplication: its output, or its --name."),
    ] = None,
    offset: Annotated[
        int | None,
        typer.Option("--offset", "-o", min=0, help="Why the record at this offset fared so."),
    ] = None,
    partition: Annotated[
        int, typer.Option("--partition", "-p", min=0, help="The partition of that offset.")
    ] = 0,
    rate: Annotated[
        float,
        typer.Option("--rate", metavar="RECORDS", min=0.0, help="Records per second to reckon by."),
    ] = 1_000.0,
    unique: Annotated[
        float,
        typer.Option("--unique", metavar="SHARE", min=0.0, max=1.0, help="How many are no copies."),
    ] = 1.0,
    partitions: Annotated[
        int, typer.Option("--partitions", metavar="COUNT", min=1, help="Partitions to reckon by.")
    ] = 1,
    by: Annotated[
        str,
        typer.Option("--by", metavar="key|header:NAME|field:PATH", help="What copies share."),
    ] = "key",
    window: Annotated[
        str | None, typer.Option("--window", metavar="SPAN", help="The window to reckon by.")
    ] = None,
    before: Before = None,
    after: After = None,
    lateness: Lateness = None,
    refresh: Refresh = False,
    state: State = None,
    directories: Directories = [],  # noqa: B006, typer copies it
    broker: Broker = None,
    settings: ClientSettings = [],  # noqa: B006
    file: ClientFile = None,
    as_json: AsJson = False,
) -> None:
    """Tell why a record was kept or dropped, or what a deduplication needs.

    With a NAME and --offset: what the record of the input was found to be, and of a duplicate which
    record was kept in its place. The changelog tells, for as long as it remembers; the input is
    read up to the record where that alone tells whether it was late. Lateness and policies are
    those of the last commit: a run before it may have had others.

    With a NAME alone, or with --window in place of it: how ids are laid out in segments of time,
    how long they are remembered, and what disk and memory that takes at --rate records a second.

    \b
    Examples:
      varve dedup explain orders-once --partition 0 --offset 4711 --dir data
      varve dedup explain orders-once --rate 5000 --dir data
      varve dedup explain --window 1d --lateness 1h --rate 20000 --unique 0.9 --partitions 12
    """
    if not rate <= _RATE_MAX:
        raise InvalidRequest(f"--rate {rate} is no number of records a second, up to {_RATE_MAX:g}")
    if name is None and window is None and (before is None or after is None):
        raise InvalidRequest("name a deduplication, or give the --window to reckon by")
    if name is None:
        if offset is not None:
            raise InvalidRequest("--offset is of a deduplication: name it")
        rules, _ = make_rules(by, window, before, after, lateness, refresh=refresh)
        tell_plan(plan_of(rules, rate, unique, partitions), as_json=as_json)
        return
    place = make_place(directories, broker, settings, file, state)
    if offset is not None:
        with open_insight(place, name) as insight:
            explanation = insight.explain(partition, offset)
        tell_explanation(explanation, as_json=as_json)
        return
    known, count = _find_rules(place, name)
    tell_plan(plan_of(known, rate, unique, count), as_json=as_json)


def _find_rules(place: DedupPlace, name: str) -> "tuple[DedupRules, int]":
    with open_insight(place, name) as insight:
        found, count = insight.partitions(), insight.partition_count()
    if not found:
        raise NotFound(f"{name} has committed nothing yet: give --window in place of the name")
    return found[0].progress.rules, count


def plan_of(rules: "DedupRules", rate: float, unique: float, partitions: int) -> dict[str, Any]:
    """What is kept where, and about how much of it, over all partitions."""
    from varve.rocks.database import MEMORY_BYTES

    # A segment goes when all of it has expired, so that up to one more than the retention is there.
    span_ms = rules.retention_ms + rules.segment_ms
    ids = rate * unique * span_ms / 1000
    logged = rate * unique * (rules.retention_ms + _DAY_MS + rules.segment_ms) / 1000
    return {
        "rules": rules.fingerprint(),
        "lateness_ms": rules.lateness_ms,
        "retention_ms": rules.retention_ms,
        "cell_ms": rules.cell_ms,
        "segment_ms": rules.segment_ms,
        "cells_per_segment": rules.cells_per_segment,
        "live_segments": partitions * (math.ceil(rules.retention_ms / rules.segment_ms) + 1),
        "look_ups": "two cells for each record at most",
        "records_per_second": rate,
        "ids": round(ids),
        "state_bytes": round(ids * _DISK_BYTES),
        "changelog_bytes": round(logged * _CHANGELOG_BYTES),
        "memory_bytes": MEMORY_BYTES,
    }


def tell_plan(plan: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"type": "plan", **plan}))
        return
    from varve.cli.screen import make_console, print_details

    rows = [
        ("duplicates", plan["rules"]),
        ("lateness", tell_span(plan["lateness_ms"])),
        ("remembered for", tell_span(plan["retention_ms"])),
        ("cells", f"{tell_span(plan['cell_ms'])} each; {plan['look_ups']}"),
        (
            "segments",
            f"{tell_span(plan['segment_ms'])} each, of {plan['cells_per_segment']:,} cells; "
            f"{plan['live_segments']:,} at a time in all partitions",
        ),
        ("ids", f"{plan['ids']:,} at {plan['records_per_second']:,.0f} records a second"),
        ("disk, state", f"about {format_bytes(plan['state_bytes'])}"),
        ("disk, changelog", f"about {format_bytes(plan['changelog_bytes'])} for each replica"),
        ("memory", f"about {format_bytes(plan['memory_bytes'])} for RocksDB, and chunks under way"),
    ]
    print_details(make_console(), rows, indent=0)


def tell_span(span_ms: int) -> str:
    """As it may be written for an option: 1h30m."""
    left, parts = span_ms, []
    for unit, size in (("d", _DAY_MS), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0ms"


def tell_explanation(explanation: "Explanation", *, as_json: bool) -> None:
    sentence = explain_in_words(explanation)
    if not as_json:
        typer.echo(sentence)
        return
    witness = explanation.witness
    told = {
        "partition": explanation.partition,
        "offset": explanation.offset,
        "timestamp": explanation.timestamp,
        "verdict": None if explanation.verdict is None else explanation.verdict.name.lower(),
        "witness_offset": None if witness is None else witness.offset,
        "witness_timestamp": None if witness is None else witness.time_ms,
        "text": sentence,
    }
    typer.echo(json.dumps({"type": "explanation", **told}))


def explain_in_words(explanation: "Explanation") -> str:
    """One sentence on what a record was found to be, and where it went."""
    from varve.dedup.rules import Verdict

    rules, witness = explanation.progress.rules, explanation.witness
    place = f"{explanation.progress.input}-{explanation.partition}, offset {explanation.offset}"
    at = f"{place}, {tell_time(explanation.timestamp)}"
    fates = {
        "forward": f"was copied to {explanation.progress.output}",
        "drop": "was dropped",
        "side": "went to the side topic",
    }
    match explanation.verdict:
        case Verdict.KEPT:
            return f"{at}: kept, the first of its id within the window; {fates['forward']}"
        case Verdict.DUPLICATE:
            assert witness is not None
            apart = explanation.timestamp - witness.time_ms
            side = "later" if apart >= 0 else "earlier"
            return (
                f"{at}: a duplicate of offset {witness.offset}, which was kept, remembered at "
                f"{tell_time(witness.time_ms)}; this one is {tell_span(abs(apart))} {side}, within "
                f"{tell_span(rules.before_ms if apart >= 0 else rules.after_ms)}; was dropped"
            )
        case Verdict.LATE:
            return (
                f"{at}: late, more than {tell_span(rules.lateness_ms)} behind the newest record "
                f"before it, and not compared; {fates[rules.late]}{_BY_LAST_RULES}"
            )
        case Verdict.FUTURE:
            return (
                f"{at}: more than {tell_span(rules.max_future_ms)} in the future when it was read, "
                f"and not compared; {fates[rules.future]}{_BY_LAST_RULES}"
            )
        case Verdict.MISSING:
            fate = f"{fates[rules.missing]}{_BY_LAST_RULES}"
            return f"{at}: without a time, and not compared; {fate}"
        case Verdict.NO_ID:
            fate = f"{fates[rules.null]}{_BY_LAST_RULES}"
            return f"{at}: without an id ({rules.by}), and not compared; {fate}"
        case _:
            return (
                f"{at}: nobody remembers; the changelog has let go what it knew of that time, so "
                "it was kept, was a duplicate, or was late"
            )
