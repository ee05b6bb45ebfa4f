"""The soak's judgement of the chain finds what was lost, made again and made out of order."""

from collections.abc import Iterator

import pytest

from tools.soak import checks
from tools.soak.chain_check import check_chain
from tools.soak.checks import Found
from tools.soak.model import Partition

STAGES = ("plain", "made", "made-again")


def _judge(monkeypatch: pytest.MonkeyPatch, *stages: str) -> tuple[list[str], int]:
    """One partition; a stage is the numbers of its records."""
    shelf = dict(zip(STAGES, stages, strict=True))

    def read(bootstrap: str, partition: Partition, start: int = 0) -> Iterator[Found]:
        return iter(
            [(at, None, b"%s:" % one.encode()) for at, one in enumerate(shelf[partition[0]])]
        )

    monkeypatch.setattr(checks, "read_partition", read)
    return check_chain("", STAGES, 1)


def test_each_record_once_and_in_order_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _judge(monkeypatch, "0123", "0123", "0123") == ([], 4)


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("013", "made-0: 1 records were not made, [2]"),
        ("01223", "made-0: 1 records were made again, [2]"),
        ("0213", "made-0: the records were made in another order"),
    ],
)
def test_what_a_stage_did_wrong_is_told_of_that_stage(
    monkeypatch: pytest.MonkeyPatch, made: str, found: str
) -> None:
    findings, count = _judge(monkeypatch, "0123", made, made)
    assert (findings, count) == ([found], len(made))


def test_the_last_stage_is_compared_with_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    findings, _ = _judge(monkeypatch, "0123", "0123", "01233")
    assert findings == ["made-again-0: 1 records were made again, [3]"]
