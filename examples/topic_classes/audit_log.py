"""An audit log: seven years on record, the last quarter of it on the local disk.

`python examples/topic_classes/audit_log.py` lives through ten years and prints what is kept where.
"""

from collections.abc import Iterator
from typing import NamedTuple

from varve.testing import VirtualStore

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS

SETTINGS: dict[str, str | int] = {
    "cleanup.policy": "delete",
    "retention.ms": 7 * YEAR_MS,
    "remote.storage.enable": True,
    "local.retention.ms": 90 * DAY_MS,
    "segment.ms": 7 * DAY_MS,
    "flush": "ack",
}


class Year(NamedTuple):
    year: int
    log_start: int
    local_start: int
    end: int
    hot_bytes: int
    cold_bytes: int
    oldest_years: float


def live(kit: VirtualStore, *, years: int) -> Iterator[Year]:
    """Fifty entries a month; tells after each year what is kept where."""
    kit.store.create_topic("audit", settings=SETTINGS)
    for year in range(years):
        for _ in range(12):
            kit.store.topic("audit").append_many(
                (f"admin-{one % 3}", f"in year {year + 1} let user {one} in") for one in range(50)
            )
            kit.advance(days=365 / 12)
            kit.run_background()
        yield look(kit, year + 1)


def look(kit: VirtualStore, year: int) -> Year:
    audit = kit.store.topic("audit")
    status = kit.store.tier.status(*kit.store.partitions("audit"))
    offsets = audit.offsets()
    oldest = next(audit.read())
    return Year(
        year,
        offsets.log_start,
        offsets.local_start,
        offsets.end,
        status.local_bytes,
        status.remote_bytes or 0,
        (kit.now_ms - oldest.timestamp) / YEAR_MS,
    )


def main() -> None:
    print("year  log start  local start    end  hot bytes  cold bytes  oldest, years")
    with VirtualStore() as kit:
        for at in live(kit, years=10):
            print(
                f"{at.year:4}  {at.log_start:9}  {at.local_start:11}  {at.end:5}"
                f"  {at.hot_bytes:9}  {at.cold_bytes:10}  {at.oldest_years:13.2f}"
            )


if __name__ == "__main__":
    main()
