"""The page of compatibility tells the versions that are served."""

from pathlib import Path

from varve.wire.apis import APIS

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "compatibility.md"


def test_the_page_has_a_row_for_every_request_and_no_other() -> None:
    _, table = PAGE.read_text().split("| Key | Request | Versions |\n| --- | --- | --- |\n")
    wanted = [
        f"| {int(api.key)} | {api.request.__name__.removesuffix('Request')} "
        f"| {api.first_advertised}-{api.versions.last} |"
        for api in APIS.values()
    ]
    assert table.partition("\n\n")[0].splitlines() == wanted
