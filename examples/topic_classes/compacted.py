"""A compacted topic: the settings of user accounts, of which the latest is the truth.

`python examples/topic_classes/compacted.py` lives through five years and prints what is kept.
"""

from collections.abc import Iterator
from typing import NamedTuple

from varve.testing import VirtualStore

DAY_MS = 86_400_000

SETTINGS: dict[str, str | int] = {
    "cleanup.policy": "compact",
    "segment.ms": 7 * DAY_MS,
    "max.compaction.lag.ms": 30 * DAY_MS,
    "delete.retention.ms": 7 * DAY_MS,
}

State = dict[str, str | None]


class Year(NamedTuple):
    year: int
    appended: int
    kept: int
    accounts: int
    tombstones: int
    hot_bytes: int


def live(kit: VirtualStore, state: State, *, years: int) -> Iterator[Year]:
    """Accounts come, change and are closed; `state` follows what each was last told."""
    accounts = kit.store.create_topic("accounts", settings=SETTINGS)
    for week in range(52 * years):
        for change in range(20):
            number = week * 20 + change
            key = f"account-{number * 7 % (100 + week)}"
            state[key] = None if number % 11 == 10 else f"settings as of change {number}"
            accounts.append(key=key, value=state[key])
        kit.advance(days=7)
        kit.run_background()
        if week % 52 == 51:
            accounts = kit.store.topic("accounts")
            records = list(accounts.read())
            yield Year(
                week // 52 + 1,
                accounts.offsets().end,
                len(records),
                sum(value is not None for value in state.values()),
                sum(record.value is None for record in records),
                accounts.partition().log.size,
            )


def main() -> None:
    print("year  appended  kept  live accounts  tombstones  hot bytes")
    with VirtualStore() as kit:
        for at in live(kit, {}, years=5):
            print(
                f"{at.year:4}  {at.appended:8}  {at.kept:4}  {at.accounts:13}  {at.tombstones:10}"
                f"  {at.hot_bytes:9}"
            )


if __name__ == "__main__":
    main()
