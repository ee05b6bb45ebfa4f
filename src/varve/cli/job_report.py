"""`varve job report`: what a job did, as tables and bars, from the file that --report wrote."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from varve.foundation.errors import InvalidRequest, NotFound
from varve.foundation.units import format_bytes, format_duration

_BAR_CELLS: Final = 24
_FORMATS: Final = (2,)


def command(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The file that --report wrote.")],
) -> None:
    """Show the report of a job: its steps, its stages, their time and bytes.

    Steps are varve's: what their tasks fetched from object stores and wrote there is counted by the
    tasks. Stages are Spark's: rows, bytes and shuffles are what Spark counts. The bars show when
    each ran, from the start of the job to its end.

    \b
    Examples:
      varve job compact --dir data --report compact.json
      varve job report compact.json
    """
    print_report(read_report(path))


def read_report(path: str) -> dict[str, Any]:
    """The document; raises InvalidRequest for anything else."""
    try:
        found = json.loads(Path(path).read_bytes())
    except FileNotFoundError as error:
        raise NotFound(f"there is no report {path!r:.300}") from error
    except (ValueError, IsADirectoryError) as error:
        raise InvalidRequest(f"{path} is no report of a job: {error!s:.200}") from error
    if not isinstance(found, dict) or not {"job", "stages", "started_ms"} <= found.keys():
        raise InvalidRequest(f"{path} is no report of a job: it has no job, stages or start")
    if found.get("format") not in _FORMATS:
        raise InvalidRequest(
            f"{path} is a report of format {found.get('format')!r:.40}, this varve shows "
            f"{', '.join(map(str, _FORMATS))}"
        )
    return found


def print_report(report: Mapping[str, Any]) -> None:
    """All of it but the result of the job, which the job's own command shows."""
    from varve.cli.screen import make_console, print_details

    console = make_console()
    store = report["store"]
    shuffled = "not told" if report["remote_stages"] else format_bytes(report["shuffled_bytes"])
    details = [
        ("job", f"{report['job']}, {report['application']}"),
        ("time", format_duration(report["duration_ms"])),
        ("tasks", f"{report['tasks']:,}, {report['failed_tasks']:,} failed"),
        ("shuffled", shuffled),
        ("requests", f"{store['requests']:,}"),
        ("fetched", format_bytes(store["read_bytes"])),
        ("stored", format_bytes(store["written_bytes"])),
    ]
    if report["rows"] is not None:
        details.insert(2, ("rows", f"{report['rows']:,}"))
    print_details(console, details, indent=0)
    _print_steps(report)
    _print_stages(report)
    for note in report["notes"]:
        console.print(f"note: {note}", soft_wrap=True, markup=False)


def _print_steps(report: Mapping[str, Any]) -> None:
    rows = [
        (
            one["name"],
            f"{one['tasks']:,}",
            format_bytes(one["store"]["read_bytes"]),
            format_bytes(one["store"]["written_bytes"]),
            format_duration(one["duration_ms"]),
            _bar(report, one),
        )
        for one in report["steps"]
    ]
    _print_table(("step", "tasks", "fetched", "stored", "time", ""), rows)


def _print_stages(report: Mapping[str, Any]) -> None:
    rows = [
        (
            f"{one['stage']} {one['name']}",
            f"{one['tasks']:,}",
            f"{one['read_rows']:,}",
            format_bytes(one["read_bytes"]),
            format_bytes(one["shuffle_written_bytes"]),
            format_bytes(one["written_bytes"]),
            format_duration(one["duration_ms"]),
            _bar(report, one),
        )
        for one in report["stages"]
    ]
    _print_table(("stage", "tasks", "rows", "read", "shuffled", "written", "time", ""), rows)
    remote = [
        (f"{one['stage']} {one['name']}", f"{one['tasks']:,}", format_bytes(one["read_bytes"]))
        for one in report["remote_stages"]
    ]
    _print_table(("stage", "tasks", "read"), remote)


def _print_table(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from varve.cli.screen import make_console

    if not rows:
        return
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(columns):
        is_left = place == 0 or not name
        grid.add_column(name, justify="left" if is_left else "right", no_wrap=place > 0)
    for row in rows:
        grid.add_row(*map(Text, row))
    console = make_console()
    console.print()
    console.print(grid)


def _bar(report: Mapping[str, Any], anies: Mapping[str, Any]) -> str:
    """When it ran within the time of the job; what took any time has a cell at least."""
    whole_ms = max(int(report["duration_ms"]), 1)
    start: int = (anies["started_ms"] - report["started_ms"]) * _BAR_CELLS // whole_ms
    start = min(max(start, 0), _BAR_CELLS - 1)
    cells: int = max(-(-anies["duration_ms"] * _BAR_CELLS // whole_ms), 1)
    cells = min(cells, _BAR_CELLS - start)
    return "·" * start + "█" * cells + "·" * (_BAR_CELLS - start - cells)
