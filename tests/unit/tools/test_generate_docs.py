"""The generated pages have what the declarations say."""

from pathlib import Path

import click
import pytest

from tools import python_api_page
from tools.generate_docs import commands_page, configuration_page, main
from varve.cli.command import CommandGroup, command


@command("varve log read orders -n 3")
@click.argument("topic", metavar="TOPIC")
@click.argument("files", metavar="[FILE...]", nargs=-1)
@click.option("-n", "--limit", default=5, help="At most | this many.")
@click.option("--shape", type=click.Choice(["round", "square"]), default="round", help="How.")
@click.option("--name", multiple=True, help="A name.")
@click.option("--json/--text", "is_json", help="For machines.")
def _read(**parameters: object) -> None:
    """Read records.

    As many as
    there are.
    """


def _application() -> CommandGroup:
    log = CommandGroup({"read": _read}, help="Things about logs.")
    secret = click.Command("secret", help="Not for the page.", hidden=True)
    return CommandGroup({"log": log, "secret": secret}, help="All of it.")


def test_every_visible_command_has_a_section_with_its_parameters() -> None:
    page = commands_page(_application())
    assert "## `varve log read`\n\nRead records.\n\nAs many as\nthere are.\n" in page
    assert "| `TOPIC` | required |" in page
    assert "| `[FILE...]` |  |" in page
    assert "| `-n`, `--limit` | `5` | At most \\| this many. |" in page
    assert "| `--shape` | `round` | How. |" in page
    assert "| `--name`, may be repeated |  | A name. |" in page
    assert "| `--json` / `--text` |  | For machines. |" in page
    assert "```sh\nvarve log read orders -n 3\n```" in page
    assert "Commands: `read`." in page
    assert "secret" not in page
    assert "completion" not in page


def test_the_configuration_page_shows_default_range_and_broker_name() -> None:
    row = "| `segment.bytes` | `log.segment.bytes` | int | `1073741824` | at least 14 | Roll"
    assert row in configuration_page()


def test_check_names_a_stale_page_and_writing_mends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs" / "reference").mkdir(parents=True)
    page = tmp_path / "docs" / "reference" / "configuration.md"
    page.write_text("old", encoding="utf-8")
    assert main(["--check"], tmp_path) == 1
    assert "docs/reference/configuration.md is stale: run `make docs`" in capsys.readouterr().err
    assert page.read_text(encoding="utf-8") == "old"
    assert main([], tmp_path) == 0
    assert main(["--check"], tmp_path) == 0
    assert page.read_text(encoding="utf-8") == configuration_page()


def test_an_unknown_argument_is_refused(tmp_path: Path) -> None:
    assert main(["--verify"], tmp_path) == 2


def test_every_public_name_of_python_is_on_its_page_once() -> None:
    described = [name for names in python_api_page.GROUPS.values() for name in names]
    assert sorted(described) == sorted(python_api_page.public_names())
    page = python_api_page.python_api_page("")
    for name in described:
        assert page.count(f"\n### `{name}`\n") == 1
    assert "append(\n    value: GivenBytes,\n    *,\n    key: GivenBytes = None," in page
    assert "| `NotFound` | `InvalidRequest` |  | No such topic, partition or file. |" in page
    assert "| `GivenBytes` | `bytes \\| bytearray \\| memoryview \\| str \\| None` |" in page
