"""The options of a deduplication's rules, for `varve dedup run` and `varve job dedup`."""

from typing import TYPE_CHECKING, Any

import click

from varve.cli import options

if TYPE_CHECKING:
    from varve.dedup.rules import RuleOptions


def _build_rules(**values: Any) -> "RuleOptions":
    from varve.dedup.rules import build_rules

    return build_rules(**values)


rule_options = options.bundle(
    "rule_options",
    _build_rules,
    click.option(
        "--by",
        required=True,
        metavar="key|header:NAME|field:PATH",
        help="The id: the key, a header, or a field of JSON values.",
    ),
    click.option(
        "--window",
        type=options.DURATION,
        metavar="DURATION",
        help="How far apart in event time duplicates may be: 10m, 1h30m, 7d.",
    ),
    click.option(
        "--before",
        type=options.DURATION,
        metavar="DURATION",
        help="Only back, instead of --window.",
    ),
    click.option(
        "--after",
        type=options.DURATION,
        metavar="DURATION",
        help="Only ahead, instead of --window.",
    ),
    click.option(
        "--lateness",
        type=options.DURATION,
        metavar="DURATION",
        help="How far behind the newest record a record is still compared; default the window.",
    ),
    click.option(
        "--late",
        default="forward",
        show_default=True,
        metavar="forward|drop|side:TOPIC",
        help="For later records, records from the future and records without a time.",
    ),
    click.option(
        "--no-id",
        type=click.Choice(["forward", "drop"]),
        default="forward",
        show_default=True,
        help="For records without an id.",
    ),
    click.option("--refresh", is_flag=True, help="A duplicate restarts the window of its id."),
    click.option(
        "--max-future",
        type=options.DURATION,
        default="1h",
        show_default=True,
        metavar="DURATION",
        help="Records further in the future do not advance the stream time.",
    ),
    names=(
        "by",
        "window",
        "before",
        "after",
        "lateness",
        "late",
        "no_id",
        "refresh",
        "max_future",
    ),
)
