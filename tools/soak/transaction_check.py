"""Compares transactions in the log with what their producers were told."""

from collections import Counter
from collections.abc import Iterator

from tools.soak import checks
from tools.soak.model import Partition, Transactions

Counts = dict[Partition, Counter[int]]
"""How many records of each transaction of one producer are there."""

_SHOWN = 5


def check_transactions(
    bootstrap: str, partitions: list[Partition], models: dict[str, Transactions]
) -> list[str]:
    """Committed ones are whole in every partition and in order, aborted ones are nowhere."""
    findings: list[str] = []
    counts: dict[str, Counts] = {name: {one: Counter() for one in partitions} for name in models}
    for partition in partitions:
        last: dict[str, int] = dict.fromkeys(models, -1)
        for offset, _, value in checks.read_partition(bootstrap, partition):
            name, _, text = (value or b"").decode().partition(":")
            number = int(text)
            counts[name][partition][number] += 1
            if number < last[name]:
                findings.append(f"{partition} at {offset}: {name} {number} is out of order")
            last[name] = number
    for name, model in models.items():
        for partition in partitions:
            findings += _check_whole(f"{partition} {name}", counts[name][partition], model)
        findings += _check_agree(name, counts[name], model)
        findings += _check_partial(name, counts[name], model)
    return findings[:10]


def _check_whole(where: str, counts: Counter[int], model: Transactions) -> list[str]:
    wanted = {one: model.copies[one] for one in model.committed}
    wanted |= {one: model.copies[one] for one in model.uncertain if counts[one]}
    found = {one: count for one, count in counts.items() if count and one not in model.partial}
    wrong = sorted(one for one in wanted.keys() | found.keys() if wanted.get(one) != found.get(one))
    return [
        f"{where}: transaction {one} has {found.get(one, 0)} records, not {wanted.get(one, 0)}"
        for one in wrong[:_SHOWN]
    ]


def _check_agree(name: str, counts: Counts, model: Transactions) -> Iterator[str]:
    """A transaction whose end was not told is in all partitions or in none."""
    for number in sorted(model.uncertain):
        count = sum(1 for found in counts.values() if found[number])
        if 0 < count < len(counts):
            yield f"{name}: transaction {number} is in {count} of {len(counts)} partitions"


def _check_partial(name: str, counts: Counts, model: Transactions) -> Iterator[str]:
    """Of what its client committed in part all that was acknowledged is there, or nothing."""
    for number, acknowledged in sorted(model.partial.items()):
        found = {partition: counts[partition][number] for partition in counts}
        if not any(found.values()):
            continue
        for partition, count in found.items():
            least, most = acknowledged[partition], model.copies[number]
            if not least <= count <= most:
                yield (
                    f"{partition} {name}: transaction {number} has {count} records, "
                    f"not {least} to {most}"
                )
