"""The options of a deduplication's rules, for `varve dedup run` and `varve job dedup`."""

from typing import TYPE_CHECKING, NamedTuple

import click

from varve.cli import options
from varve.foundation.errors import InvalidRequest

if TYPE_CHECKING:
    from varve.dedup.rules import DedupRules


class RuleOptions(NamedTuple):
    """The rules, and the topic for records that go to the side."""

    rules: "DedupRules"
    side_topic: str | None


def build_rules(
    by: str,
    window: int | None = None,
    before: int | None = None,
    after: int | None = None,
    lateness: int | None = None,
    late: str = "forward",
    no_id: str = "forward",
    refresh: bool = False,
    max_future: int = 3_600_000,
) -> RuleOptions:
    """Durations are in milliseconds; --before and --after together replace --window."""
    from varve.dedup.rules import DedupRules, NullPolicy, parse_id_source, parse_late_policy

    before_ms = window if before is None else before
    after_ms = window if after is None else after
    if before_ms is None or after_ms is None:
        raise InvalidRequest("--window is missing: give it, or both --before and --after")
    policy, side_topic = parse_late_policy(late)
    window_ms = max(before_ms, after_ms) if window is None else window
    rules = DedupRules(
        by=parse_id_source(by),
        before_ms=before_ms,
        after_ms=after_ms,
        lateness_ms=window_ms if lateness is None else lateness,
        late=policy,
        future=policy,
        missing=policy,
        null=NullPolicy(no_id),
        is_refreshing=refresh,
        max_future_ms=max_future,
    )
    return RuleOptions(rules, side_topic)


rule_options = options.bundle(
    "rule_options",
    build_rules,
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
