"""The documents and the lock say what the code says."""

import ast
import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tools.generate_docs import find_stale, page_order
from varve import errors

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "varve"


def _read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def _packages_in_table() -> dict[str, str]:
    rows = re.findall(r"^\| \d+ \| `(\w+)` \| (.*) \|$", _read("ARCHITECTURE.md"), re.MULTILINE)
    return dict(rows)


def _package_folders() -> list[str]:
    return sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def _required_packages() -> list[str]:
    project = tomllib.loads(_read("pyproject.toml"))
    groups = project["dependency-groups"]
    tools = [tool for tool in groups["dev"] if isinstance(tool, str)]
    return _package_names(_run_requirements(project) + tools + groups["setup"])


def _run_requirements(project: dict[str, Any]) -> list[str]:
    extras: list[str] = project["project"]["optional-dependencies"]["spark"]
    return [*project["project"]["dependencies"], *extras]


def _package_names(requirements: list[str]) -> list[str]:
    return [re.split(r"[^A-Za-z0-9_.-]", requirement)[0] for requirement in requirements]


def _guarantees() -> dict[str, tuple[str, list[str]]]:
    """The sentence of each guarantee and the tests that carry it, by number."""
    page, _, tests_of_page = _read("docs/reference/guarantees.md").partition("\n## Tests\n")
    row = re.compile(r"^\| ([GS]\d+) \| ([^|]*) \|$", re.MULTILINE)
    tests = {number: re.findall(r"`([^`]+)`", cell) for number, cell in row.findall(tests_of_page)}
    return {number: (sentence, tests[number]) for number, sentence in row.findall(page)}


def _promises_of_shapes() -> dict[str, str]:
    """What docs/how-to/serve-shapes.md promises, by number."""
    promises = re.findall(
        r"^- \*\*(S\d+)\*\* (.*(?:\n  .*)*)$", _read("docs/how-to/serve-shapes.md"), re.MULTILINE
    )
    return {number: " ".join(text.split()) for number, text in promises}


def _contract_sentences() -> dict[str, str]:
    """What docs/how-to/deduplicate.md promises, by number."""
    return dict(
        re.findall(r"^- \*\*(D\d+)\*\* (.*)$", _read("docs/how-to/deduplicate.md"), re.MULTILINE)
    )


def _contract_tests() -> Iterator[tuple[str, str]]:
    """The number in the name of each test of that contract, and the text of its docstring."""
    for path in sorted((ROOT / "tests/unit/dedup").glob("test_contract_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                number = node.name.split("_")[1].upper()
                yield number, " ".join((ast.get_docstring(node) or "").split())


def _markdown_files() -> list[Path]:
    top = list(ROOT.glob("*.md"))
    return sorted([*top, *(ROOT / "docs").rglob("*.md"), *(ROOT / "changes").glob("*.md")])


def _hex_examples() -> Iterator[tuple[Path, int, bytes]]:
    for path in sorted((ROOT / "docs" / "reference" / "formats").glob("*.md")):
        text_before, *blocks = path.read_text(encoding="utf-8").split("```hex\n")
        for block in blocks:
            lines, _, text_after = block.partition("```")
            size = int(re.findall(r"(\d+) bytes", text_before)[-1])
            yield (
                path,
                size,
                b"".join(bytes.fromhex(line.split(";")[0]) for line in lines.split("\n")),
            )
            text_before = text_after


def test_the_package_table_names_every_package() -> None:
    assert sorted(_packages_in_table()) == _package_folders()


@pytest.mark.parametrize("package", _package_folders())
def test_the_docstring_of_a_package_is_its_sentence_in_the_table(package: str) -> None:
    module = ast.parse((PACKAGE / package / "__init__.py").read_text(encoding="utf-8"))
    sentence = " ".join((ast.get_docstring(module) or "").split())
    assert sentence == _packages_in_table()[package]


def test_files_named_in_the_architecture_exist() -> None:
    files = re.findall(r"`((?:\w+/)+\w+\.py)`", _read("ARCHITECTURE.md"))
    assert len(files) > 6
    assert [file for file in files if not (PACKAGE / file).exists()] == []


def _documented_imports() -> list[tuple[str, str, str]]:
    """Page, module and name of every import from varve in the Python blocks of the documents."""
    imports = set()
    for page in _markdown_files():
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)
        for node in (node for block in blocks for node in ast.walk(ast.parse(block))):
            where = str(page.relative_to(ROOT))
            if isinstance(node, ast.Import):
                imports |= {(where, alias.name, "") for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imports |= {(where, node.module or "", alias.name) for alias in node.names}
    return sorted(entry for entry in imports if entry[1].split(".")[0] == "varve")


@pytest.mark.parametrize(("page", "module", "name"), _documented_imports())
def test_a_documented_import_works(page: str, module: str, name: str) -> None:
    imported = importlib.import_module(module)
    assert not name or hasattr(imported, name), f"{page}: {module} has no {name}"


def _public_errors() -> dict[str, bool]:
    """Every class of `varve.errors`, and whether a retry may help."""
    return {
        name: error.retriable
        for name, error in vars(errors).items()
        if isinstance(error, type) and issubclass(error, errors.StoreError)
    }


def test_every_error_is_explained_with_its_retry() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \|[^|]*\|[^|]*\| (yes|no) \|$",
        _read("docs/reference/errors.md"),
        re.MULTILINE,
    )
    assert len(rows) == len(dict(rows))
    assert {name: retry == "yes" for name, retry in rows} == _public_errors()


def test_every_dependency_is_explained() -> None:
    explained = set(
        re.findall(r"^\| `([^`]+)` \|", _read("docs/contributing/dependencies.md"), re.MULTILINE)
    )
    assert sorted(_required_packages()) == sorted(explained)


def test_every_dependency_is_locked_with_hashes() -> None:
    lock = _read("requirements-dev.lock")
    for package in _required_packages():
        assert re.search(rf"^{re.escape(package)}==[^\n]*\\\n +--hash=sha256:", lock, re.MULTILINE)


def test_varve_alone_is_locked_to_the_same_versions() -> None:
    dev = set(re.findall(r"^\S+==\S+", _read("requirements-dev.lock"), re.MULTILINE))
    alone = set(re.findall(r"^\S+==\S+", _read("requirements.lock"), re.MULTILINE))
    assert alone < dev
    names = {pin.split("==")[0] for pin in alone}
    project = tomllib.loads(_read("pyproject.toml"))
    assert names.issuperset(_package_names(_run_requirements(project)))
    assert "pytest" not in names


@pytest.mark.parametrize("file", ["requirements.lock", "requirements-dev.lock"])
def test_the_lock_names_no_registry(file: str) -> None:
    lock = _read(file)
    assert "://" not in lock
    assert not re.search(
        r"^\s*-+(i|f|index-url|extra-index-url|find-links|trusted-host)\b", lock, re.M
    )


def test_the_tests_that_carry_a_guarantee_exist_and_carry_its_number() -> None:
    guarantees = _guarantees()
    assert guarantees
    for number, (_, paths) in guarantees.items():
        assert paths, f"no test carries {number}"
        for path in paths:
            assert re.search(rf"\b{number}\b", _read(path)), f"{path} does not name {number}"


def test_what_shapes_promise_is_among_the_guarantees_in_the_same_words() -> None:
    promises = _promises_of_shapes()
    assert list(promises) == [f"S{number}" for number in range(1, len(promises) + 1)]
    guarantees = {number: text for number, (text, _) in _guarantees().items() if number[0] == "S"}
    assert guarantees == promises


def test_every_sentence_of_the_contract_is_the_docstring_of_one_test() -> None:
    sentences = _contract_sentences()
    assert list(sentences) == [f"D{number}" for number in range(1, len(sentences) + 1)]
    expected = sorted(f"{number} {text}" for number, text in sentences.items())
    assert sorted(text for _, text in _contract_tests()) == expected
    for number, text in _contract_tests():
        assert text.split()[0] == number, f"the test of {number} speaks of {text:.20}"


def test_generated_pages_are_fresh() -> None:
    assert list(find_stale(ROOT)) == [], "run `make docs`"


def test_hex_examples_have_the_size_the_text_says() -> None:
    examples = list(_hex_examples())
    assert len({path for path, _, _ in examples}) >= 5
    for path, size, data in examples:
        assert len(data) == size, (
            f"{path.name}: the text says {size} bytes, the example has {len(data)}"
        )


def _anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    anchors: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        repeated = sum(known == anchor for known in anchors)
        anchors.add(f"{anchor}-{repeated}" if repeated else anchor)
    return anchors


def _links(path: Path) -> list[tuple[Path, str]]:
    """The page or file, and the anchor, of each relative link."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    return [
        ((path.parent / target).resolve() if target else path, anchor)
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text)
        if "://" not in target
    ]


@pytest.mark.parametrize("path", _markdown_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_anchors_resolve(path: Path) -> None:
    for target, anchor in _links(path):
        assert target.exists(), f"{path.name} links to {target}, which does not exist"
        if anchor:
            assert anchor in _anchors(target), f"{target.name} has no heading #{anchor}"


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    listed = page_order(index)
    assert len(listed) == len(set(listed))
    assert {index, *listed} == {ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")}


def test_every_page_ends_with_links_to_the_pages_before_and_after_it() -> None:
    index = ROOT / "docs" / "README.md"
    order = page_order(index)
    for number, page in enumerate(order):
        last = page.read_text(encoding="utf-8").rstrip().split("\n")[-1]
        linked = [(page.parent / target).resolve() for target in re.findall(r"\]\(([^)]+)\)", last)]
        assert linked == [
            index,
            *order[max(number - 1, 0) : number],
            *order[number + 1 : number + 2],
        ]
