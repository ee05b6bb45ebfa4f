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
        metavar="ID",
        help="What identifies a record: key, header:NAME or field:PATH of JSON values.",
    ),
    click.option(
        "--window",
        type=options.DURATION,
        help="How far apart in event time duplicates may be: 10m, 1h30m, 7d.",
    ),
    click.option(
        "--before", type=options.DURATION, help="With --after, instead of --window: how far back."
    ),
    click.option(
        "--after", type=options.DURATION, help="With --before, instead of --window: how far ahead."
    ),
    click.option(
        "--lateness",
        type=options.DURATION,
        help="How late a record may be to be compared; default the window.",
    ),
    click.option(
        "--late",
        default="forward",
        metavar="POLICY",
        help="Late, future-dated and untimed records: forward, drop or side:TOPIC.",
    ),
    click.option(
        "--no-id",
        type=click.Choice(["forward", "drop"]),
        default="forward",
        help="Records without an id.",
    ),
    click.option("--refresh", is_flag=True, help="A duplicate restarts the window of its id."),
    click.option(
        "--max-future",
        type=options.DURATION,
        default="1h",
        help="Times further in the future do not move stream time.",
    ),
)
