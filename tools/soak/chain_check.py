"""Compares the stages of the chain: each has, in order and once, what the one before has."""

from collections import Counter

from tools.soak import checks
from tools.soak.model import number_of

_SHOWN = 3


def check_chain(
    bootstrap: str, stages: tuple[str, ...], partition_count: int
) -> tuple[list[str], int]:
    """Of committed records; how many came to the last stage."""
    findings, count = [], 0
    for number in range(partition_count):
        before = _numbers(bootstrap, stages[0], number)
        for stage in stages[1:]:
            made = _numbers(bootstrap, stage, number)
            findings += _compare(f"{stage}-{number}", before, made)
            before = made
        count += len(before)
    return findings[:10], count


def _numbers(bootstrap: str, topic: str, partition: int) -> list[int]:
    found = checks.read_partition(bootstrap, (topic, partition))
    return [number_of(value) for _, _, value in found]


def _compare(where: str, before: list[int], made: list[int]) -> list[str]:
    if made == before:
        return []
    wanted, found = Counter(before), Counter(made)
    lost, more = sorted((wanted - found).elements()), sorted((found - wanted).elements())
    told = []
    if lost:
        told.append(f"{where}: {len(lost)} records were not made, {lost[:_SHOWN]}")
    if more:
        told.append(f"{where}: {len(more)} records were made again, {more[:_SHOWN]}")
    return told or [f"{where}: the records were made in another order"]
