"""The code uses the established terms: words that needed a translation do not come back."""

import re
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).parents[2] / "src").rglob("*.py"))

REPLACED = {
    "door": "listener or connection",
    "doomed": "pending deletion",
    "foresee": "preview",
    "gate": "deduplicated partition",
    "heard": "received",
    "house": "project",
    "inlet": "frame reader",
    "intake": "frame reader",
    "knock": "accept",
    "outlet": "response writer",
    "patience": "timeout",
    "upkeep": "maintenance",
}


@pytest.mark.parametrize("word", REPLACED)
def test_a_private_word_is_not_used(word: str) -> None:
    pattern = re.compile(rf"(?<![a-z]){word}s?(?![a-z])", re.IGNORECASE)
    places = [
        f"{path.name}:{number}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert places == [], f"write {REPLACED[word]} instead of {word}"
