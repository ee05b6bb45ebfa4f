"""Regular expressions that clients send."""

import time

import pytest

from varve.broker.request import PATTERN_LENGTH_MAX, find_matching
from varve.wire import ErrorCode
from varve.wire.errors import KafkaError


@pytest.mark.parametrize(
    ("text", "name", "is_match"),
    [
        ("events", "events", True),
        ("events", "events-1", False),
        ("^ev.*s$", "events", True),
        ("a|b-[0-9]+", "b-17", True),
        ("(?:a|ab)(?:c|bcd)", "abcd", True),
        (r"\Qa.b+\E+", "a.b++", True),
        (r"\pL+", "events", True),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_a_whole_name_is_matched(text: str, name: str, is_match: bool) -> None:
    assert (name in find_matching(text, [name, "other"])) is is_match


@pytest.mark.parametrize(
    "text",
    [
        "(a",
        "(?=a)",
        r"(a)\1",
        "a" * (PATTERN_LENGTH_MAX + 1),
        "(a{100}){100}",
    ],
)
def test_what_is_wrong_or_would_cost_too_much_is_refused(text: str) -> None:
    with pytest.raises(KafkaError, match=r"is not valid: .+") as caught:
        find_matching(text, ["a"])
    assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_an_invalid_expression_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KafkaError):
        find_matching("(a", ["a"])
    assert capfd.readouterr() == ("", "")


def test_no_expression_takes_exponential_time() -> None:
    start = time.thread_time()
    assert not find_matching("(x+x+)+y|(a|a)*b|(a*)*c", ["x" * 249, "a" * 249])
    assert time.thread_time() - start < 1.0
