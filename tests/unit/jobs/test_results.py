"""Results of jobs as JSON, and what a job that failed in part raises."""

import json
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

import pytest

from varve.jobs.results import JSON_NAME, JobIncomplete, JobResult, JsonFields


class Mode(StrEnum):
    APPEND = "append"


class Reason(IntEnum):
    KEPT = 3


@dataclass(frozen=True, slots=True)
class Part(JsonFields):
    rows: int
    bytes_read: int = field(default=0, metadata={JSON_NAME: "bytes"})


@dataclass(frozen=True, slots=True)
class Summary:
    """Has no encoding of its own."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(JobResult):
    mode: Mode
    parts: tuple[Part, ...]
    offsets: dict[int, int]
    reasons: dict[Reason, int]
    summary: Summary | None = None
    secret: str = field(default="hidden", metadata={JSON_NAME: None})
    errors: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[str, ...]:
        return self.errors


RESULT = Result(
    mode=Mode.APPEND,
    parts=(Part(1, 2), Part(3)),
    offsets={0: 7},
    reasons={Reason.KEPT: 5},
    summary=Summary("all"),
)


def test_fields_are_encoded_under_their_names_in_order() -> None:
    encoded = RESULT.to_json()
    assert list(encoded) == ["mode", "parts", "offsets", "reasons", "summary", "errors"]
    assert json.loads(json.dumps(encoded)) == {
        "mode": "append",
        "parts": [{"rows": 1, "bytes": 2}, {"rows": 3, "bytes": 0}],
        "offsets": {"0": 7},
        "reasons": {"3": 5},
        "summary": {"name": "all"},
        "errors": [],
    }


def test_a_result_with_failures_raises_the_first_and_counts_the_others() -> None:
    RESULT.raise_for_failures()
    failed = Result(mode=Mode.APPEND, parts=(), offsets={}, reasons={}, errors=("one", "two"))
    with pytest.raises(JobIncomplete, match=r"one \(and 1 more\)"):
        failed.raise_for_failures()
