"""`varve tier status`: what lies on the local disk and in object storage, per topic."""

from typing import Annotated

import typer

from varve.cli.log_output import print_rows
from varve.cli.store_access import Directory, Wanted, find_topic, open_existing, parse_wanted
from varve.cli.tier_access import StoreSettings, TierUrl, tier_settings
from varve.object_store import default_prices
from varve.tiering.copy_report import TierStatus


def command(
    directory: Directory,
    wanted: Wanted = None,
    store_url: TierUrl = "",
    store_settings: StoreSettings = [],  # noqa: B006, typer reads it once
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per topic.")] = False,
) -> None:
    """Show per topic what is hot, what is cold, and what waits to be copied.

    Hot is what the local disk holds, cold what can be read in the store; both count bytes of data
    files. Stored are all bytes of objects that manifests name, the basis of the cost per month by
    the declared list prices of the store. Lag is what is closed but not copied.

    \b
    Examples:
      varve tier status data --store file:/backup/tier
      varve tier status data orders --store s3://bucket/varve --json
    """
    topic, partition = parse_wanted(wanted)
    found: dict[str, list[TierStatus]] = {}
    settings = tier_settings(store_url, store_settings)
    with open_existing([directory], maintain=False, settings=settings) as store:
        if topic is not None:
            find_topic(store, topic)
        tier = store.tier
        for one in store.partitions(topic, partition):
            found.setdefault(one.topic, []).append(tier.status(one))
        prices = default_prices(tier.objects.name)
    columns = [
        "topic",
        "copying",
        "hot bytes",
        "hot segments",
        "cold bytes",
        "cold segments",
        "pending segments",
        "lag bytes",
        "lag segments",
        "stored bytes",
        f"{prices.currency.lower()} per month",
    ]
    rows = [
        _row(name, parts, prices.stored_cost_per_month(sum(one.stored_bytes for one in parts)))
        for name, parts in found.items()
    ]
    print_rows(columns, rows, as_json=as_json)


def _row(name: str, parts: list[TierStatus], cost: float) -> list[object]:
    return [
        name,
        "yes" if parts[0].is_copying else "no",
        sum(one.hot_bytes for one in parts),
        sum(one.hot_segments for one in parts),
        sum(one.cold_bytes for one in parts),
        sum(one.cold_segments for one in parts),
        sum(one.pending_segments for one in parts),
        sum(one.lag_bytes for one in parts),
        sum(one.lag_segments for one in parts),
        sum(one.stored_bytes for one in parts),
        round(cost, 4),
    ]
