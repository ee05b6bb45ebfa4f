"""Code and documents use the established terms: words that need a translation do not return."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = tuple(sorted((ROOT / "src").rglob("*.py")))
DOCUMENTS = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")))

REPLACED = {
    "anew": "again or from scratch",
    "as good as": "almost",
    "by lot": "at random",
    "comes? to be": "becomes",
    "door": "listener or connection",
    "doomed": "pending deletion",
    "for ever": "forever",
    "foresee": "preview",
    "gate": "deduplicated partition",
    "hardly": "rarely",
    "heard": "received",
    "house": "project",
    "if need be": "if necessary",
    "inlet": "frame reader",
    "intake": "frame reader",
    "knock": "accept",
    "mended": "fixed or repaired",
    "nobody": "no client, no process",
    "outlet": "response writer",
    "passed over": "ignored, skipped",
    "patience": "timeout",
    "somebody": "a client, a process",
    "told": "reported",
    "upkeep": "maintenance",
    "written (aside|beside)": "written to a temporary file",
}


@pytest.mark.parametrize("word", REPLACED)
def test_a_private_word_is_not_used_in_the_code(word: str) -> None:
    assert _find(word, SOURCES) == [], f"write {REPLACED[word]} instead of {word}"


@pytest.mark.parametrize("word", REPLACED)
def test_a_private_word_is_not_used_in_the_documents(word: str) -> None:
    assert _find(word, DOCUMENTS) == [], f"write {REPLACED[word]} instead of {word}"


def _find(word: str, files: tuple[Path, ...]) -> list[str]:
    """File and line of each use; a phrase may continue on the next line."""
    pattern = re.compile(word.replace(" ", r"\s+") + "s?(?![a-z])")
    return [
        f"{path.name}:{len(text[: match.end()].splitlines())}"
        for path, text in _read_lower(files)
        for match in pattern.finditer(text)
        if not text[match.start() - 1 : match.start()].isalpha()
    ]


@cache
def _read_lower(files: tuple[Path, ...]) -> list[tuple[Path, str]]:
    return [(path, path.read_text(encoding="utf-8").lower()) for path in files]
