"""What commands print on: how wide it is, and rows whose longer parts stand on lines below them."""

import os
import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

WIDE: Final = 150
"""From so many columns on a table has room for sentences."""

_PLAIN_WIDTH: Final = 100
_INDENT: Final = 4

Details = Sequence[tuple[str, str | Text]]


def make_console() -> Console:
    """Standard output: as wide as the terminal, elsewhere as COLUMNS says, or 100."""
    width = None
    if not sys.stdout.isatty():
        told = os.environ.get("COLUMNS", "")
        is_told = told.isascii() and told.isdigit() and int(told[:6]) > 0
        width = int(told[:6]) if is_told else _PLAIN_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, markup=False)


def print_rows_with_details(
    console: Console,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    details: Sequence[Details],
    *,
    left: Sequence[str] = (),
) -> None:
    """A line for each row, and its details below it; `left` names the columns of text.

    Outside of a terminal a row stays one line however long it is: other programs read it.
    """
    is_whole = not sys.stdout.isatty()
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, cell, width in zip(columns, cells, widths, strict=True)
        ).rstrip()

    console.print(Text(line(columns), "bold"), soft_wrap=is_whole)
    for row, pairs in zip(rows, details, strict=True):
        console.print(Text(line(row)), soft_wrap=is_whole)
        print_details(console, pairs)


def print_details(console: Console, pairs: Details, *, indent: int = _INDENT) -> None:
    """Labels, and beside each its text, which breaks between words."""
    if not pairs:
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in pairs:
        grid.add_row(Text(label), Text(text) if isinstance(text, str) else text)
    console.print(Padding(grid, (0, 0, 0, indent), expand=False))
