"""The code uses the established terms: words that needed a translation do not come back."""

import re
from pathlib import Path

import pytest

SOURCES = sorted((Path(__file__).parents[2] / "src").rglob("*.py"))
ENGINE_SOURCES = [path for path in SOURCES if "cli" not in path.parts]

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
REPLACED_IN_ENGINE = {
    "anew": "again",
    "hardly": "rarely",
    "told": "reported",
}
"""Words that only the command line still uses."""


@pytest.mark.parametrize("word", REPLACED)
def test_a_private_word_is_not_used(word: str) -> None:
    assert _find(word, SOURCES) == [], f"write {REPLACED[word]} instead of {word}"


@pytest.mark.parametrize("word", REPLACED_IN_ENGINE)
def test_a_private_word_is_not_used_outside_the_command_line(word: str) -> None:
    places = _find(word, ENGINE_SOURCES)
    assert places == [], f"write {REPLACED_IN_ENGINE[word]} instead of {word}"


def _find(word: str, sources: list[Path]) -> list[str]:
    pattern = re.compile(rf"(?<![a-z]){word}s?(?![a-z])", re.IGNORECASE)
    return [
        f"{path.name}:{number}"
        for path in sources
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
