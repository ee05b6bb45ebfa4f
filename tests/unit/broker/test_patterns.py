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
        ("ev.*", "events", True),
        ("^ev.*s$", "events", True),
        (r"\Aev.*s\z", "events", True),
        ("a|b-[0-9]+", "b-17", True),
        ("(^a|b)c", "ac", True),
        ("(^a|b)c", "bc", True),
        ("x(^a|b)c", "xac", False),
        ("a{2,3}", "aaa", True),
        ("a{2,3}", "aaaa", False),
        ("a{2,}", "aaaaa", True),
        ("a{2,}", "a", False),
        ("a{0}b", "b", True),
        ("(ab){2}", "abab", True),
        ("(a|b)*c", "abbac", True),
        ("a+?b??", "aaa", True),
        ("(?:a|ab)(?:c|bcd)", "abcd", True),
        ("(?P<year>[0-9]{4})-x", "2024-x", True),
        ("[]a^-]+", "]a^-", True),
        ("[^a-c]", "b", False),
        ("[[:alpha:]_]+", "a_Z", True),
        ("[[:^digit:]]", "7", False),
        (r"\d{3}-\w+", "123-x_y", True),
        (r"[\d.]+", "1.2", True),
        (r"\Qa.b+\E+", "a.b++", True),
        (r"a\.b", "axb", False),
        (r"\x41\x{42}", "AB", True),
        ("(?i)Ev[A-C]+", "eVbC", True),
        ("(?i:a)b", "AB", False),
        ("a{x}", "a{x}", True),
        (r"\bevents\b-1", "events-1", True),
        (r"\pL+", "events", True),
        ("^^a", "a", True),
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
        "a)",
        "*a",
        "a**",
        "[a",
        "[z-a]",
        "a\\",
        "(?=a)",
        "(?<=a)b",
        r"(a)\1",
        "[[:none:]]",
        r"\xZZ",
        "a{3,2}",
        "a{1001}",
        "a" * (PATTERN_LENGTH_MAX + 1),
        "(a{100}){100}",
        "(((){1000}){1000}){1000}",
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
