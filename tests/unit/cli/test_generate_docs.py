from enum import StrEnum
from pathlib import Path
from typing import Annotated

import pytest
import typer

from varve.cli.generate_docs import commands_page, configuration_page, main


class Shape(StrEnum):
    ROUND = "round"
    SQUARE = "square"


def _application() -> typer.Typer:
    application = typer.Typer(help="All of it.")
    group = typer.Typer(help="Things about logs.")
    application.add_typer(group, name="log")

    @group.command()
    def read(
        topic: Annotated[str, typer.Argument(help="Which topic.")],
        limit: Annotated[int, typer.Option("--limit", "-n", help="At most | this many.")] = 5,
        shape: Annotated[Shape, typer.Option(help="How.")] = Shape.ROUND,
        as_json: Annotated[bool, typer.Option("--json/--text", help="For machines.")] = False,
    ) -> None:
        """Read records."""

    @application.command(hidden=True)
    def secret() -> None:
        """Not for the page."""

    return application


def test_every_visible_command_has_a_section_with_its_parameters() -> None:
    page = commands_page(_application())
    assert "## `varve log read`\n\nRead records.\n" in page
    assert "| `TOPIC` | required | Which topic. |" in page
    assert "| `--limit`, `-n` | `5` | At most \\| this many. |" in page
    assert "| `--shape` | `round` | How. |" in page
    assert "| `--json` / `--text` |  | For machines. |" in page
    assert "secret" not in page
    assert "completion" not in page


def test_the_configuration_page_shows_default_range_and_broker_name() -> None:
    row = "| `segment.bytes` | `log.segment.bytes` | int | `1073741824` | at least 14 | Roll"
    assert row in configuration_page()


def test_check_names_a_stale_page_and_writing_mends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs" / "jobs").mkdir(parents=True)
    page = tmp_path / "docs" / "configuration.md"
    page.write_text("old", encoding="utf-8")
    assert main(["--check"], tmp_path) == 1
    assert "docs/configuration.md is stale: run `make docs`" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == "old"
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    assert page.read_text(encoding="utf-8") == configuration_page()


def test_an_unknown_argument_is_refused(tmp_path: Path) -> None:
    assert main(["--verify"], tmp_path) == 2
