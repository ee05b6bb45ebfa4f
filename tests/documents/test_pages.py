"""Every example of every page runs from top to bottom and prints what the page shows."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.documents.page_blocks import ROOT, Step, find_blocks, find_steps, pages
from tests.documents.page_shell import PageShell, find_difference, page_shell
from tests.documents.set_ups import NOT_RUN, SET_UPS, SetUp
from tests.support.forked_commands import CommandServers
from tests.support.s3_server import s3_server

_README_LINES_MAX = 130
_README_WORDS_MAX = 900


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _steps(name: str) -> list[Step]:
    return [step for block in find_blocks(ROOT / name) for step in find_steps(block)]


def _is_run(name: str, step: Step) -> bool:
    return not any(step.text.startswith(begin) for begin in NOT_RUN.get(name, {}))


def _needs_spark(step: Step) -> bool:
    if step.is_python:
        return "spark" in step.text
    return re.search(r"\bvarve job (?!report|due$)", step.text) is not None


def _steps_to_run(name: str, *, with_spark: bool) -> list[Step]:
    """The examples of a page; without Spark those that need none."""
    return [
        step
        for step in _steps(name)
        if _is_run(name, step) and (with_spark or not _needs_spark(step))
    ]


def _pages_to_run(*, with_spark: bool) -> list[str]:
    """The pages that have such examples; README runs with Spark and without."""
    chosen = []
    for name in map(_name, pages()):
        steps = _steps_to_run(name, with_spark=with_spark)
        if steps and (not with_spark or any(map(_needs_spark, steps))):
            chosen.append(name)
    return chosen


@contextmanager
def _bucket(set_up: SetUp) -> Iterator[dict[str, str]]:
    """The variables by which `s3://bucket` is found."""
    if not set_up.needs_bucket:
        yield {}
        return
    with s3_server() as server:
        server.make_bucket("bucket")
        yield {
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_ACCESS_KEY_ID": str(server.settings["access.key.id"]),
            "AWS_SECRET_ACCESS_KEY": str(server.settings["secret.access.key"]),
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }


def _run_step(shell: PageShell, name: str, step: Step, set_up: SetUp) -> None:
    text, expected = step.text, step.printed
    for placeholder, value in set_up.placeholders.items():
        text = text.replace(placeholder, value)
        expected = None if expected is None else expected.replace(placeholder, value)
    if step.is_python:
        text = set_up.prelude + text
    printed, code = shell.run(Step(step.line, step.is_python, text, expected))
    place = f"{name}:{step.line}: {step.text}"
    if expected is not None:
        difference = find_difference(expected, printed)
        assert not difference, f"{place}\n{difference}"
    shows_failure = step.printed is not None and re.search("^error: ", step.printed, re.MULTILINE)
    assert code == 0 or shows_failure, f"{place}\nended with {code}\n{printed}"


def _run_page(servers: CommandServers, name: str, *, with_spark: bool) -> None:
    set_up = SET_UPS.get(name, SetUp())
    with ExitStack() as stack:
        variables = stack.enter_context(_bucket(set_up))
        shell = stack.enter_context(page_shell(servers, {**variables, **set_up.environment}))
        for line in set_up.commands.splitlines():
            _run_step(shell, f"set-up of {name}", Step(0, False, line, None), set_up)
        for step in _steps_to_run(name, with_spark=with_spark):
            _run_step(shell, name, step, set_up)


@pytest.mark.parametrize("name", _pages_to_run(with_spark=False))
def test_a_page_runs_from_top_to_bottom(commands: CommandServers, name: str) -> None:
    _run_page(commands, name, with_spark=False)


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_pages_of_spark_run_in_one_session(tmp_path: Path) -> None:
    with CommandServers(tmp_path, with_spark=True) as servers:
        for name in _pages_to_run(with_spark=True):
            _run_page(servers, name, with_spark=True)


def test_every_example_that_does_not_run_is_on_its_page() -> None:
    for name, reasons in NOT_RUN.items():
        texts = [step.text for step in _steps(name)]
        for begin in reasons:
            assert any(text.startswith(begin) for text in texts), f"{name} has no {begin!r}"
    assert set(SET_UPS) <= set(map(_name, pages()))


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= _README_LINES_MAX
    assert len(text.split()) <= _README_WORDS_MAX
