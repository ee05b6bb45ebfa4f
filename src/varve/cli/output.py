"""What commands print: tables and sentences for people, JSON lines for programs.

Invariant  standard output has the result alone; notes, warnings, questions and progress are on
           standard error. With `--json` every line of standard output is an object with a `type`.
"""

import contextlib
import json
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, ParamSpec

import click

from varve.foundation.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.console import Console

P = ParamSpec("P")

Details = Sequence[tuple[str, str]]
"""Labels and texts that are printed below a row."""

SEVERITY_STYLES: Final = {"error": "red", "warning": "yellow", "note": "dim"}
"""Styles of findings."""

_PLAIN_WIDTH: Final = 100
_DETAIL_INDENT: Final = 4
_LONG_BYTES: Final = 64 << 20
"""Below this size the work is over before a bar could be read."""


class Grouped(int):
    """A number that people read with thousands separators."""

    def __str__(self) -> str:
        return f"{self:,}"


class Money(float):
    """An amount that people read with four decimals."""

    def __str__(self) -> str:
        return f"{self:.4f}"


class Output:
    """Where a command prints its result: as text, or as JSON lines."""

    def __init__(self, *, is_json: bool = False, is_quiet: bool = False) -> None:
        self.is_json = is_json
        self.is_quiet = is_quiet

    # Results

    def print_result(self, text: str, type: str, /, **fields: object) -> None:
        """One sentence for people, or one object of this type."""
        if self.is_json:
            self.print_object(type, fields)
        elif not self.is_quiet:
            click.echo(text)

    def print_object(self, type: str, fields: Mapping[str, object]) -> None:
        click.echo(json.dumps({"type": type, **fields}, ensure_ascii=False))

    def print_objects(self, type: str, documents: Iterable[Mapping[str, object]]) -> None:
        for document in documents:
            self.print_object(type, document)

    def print_table(
        self,
        type: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        details: Sequence[Details] | None = None,
        right: bool = False,
        left: Sequence[str] = (),
        styles: Sequence[str] | None = None,
        documents: Iterable[Mapping[str, object]] | None = None,
    ) -> None:
        """A table with numbers to the right; or an object per row, keys in snake case.

        `documents` are the objects where they have more than the rows.
        Details stand below their row and are left out of the objects. Outside a terminal a row is
        one line, however long it is. `right` aligns every column, for numbers with separators,
        except those that `left` names.
        `styles` are those of the rows, as rich names them.
        """
        if self.is_json:
            if documents is None:
                names = [column.replace(" ", "_") for column in columns]
                documents = [dict(zip(names, row, strict=True)) for row in rows]
            self.print_objects(type, documents)
            return
        cells = [[_text(cell) for cell in row] for row in rows]
        numeric = [
            (right and columns[index] not in left)
            or (
                any(isinstance(row[index], int | float) for row in rows)
                and all(isinstance(row[index], int | float | None) for row in rows)
            )
            for index in range(len(columns))
        ]
        widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
        console = make_console()
        _print_line(console, columns, widths, numeric, style="bold")
        for number, row_cells in enumerate(cells):
            style = "" if styles is None else styles[number]
            _print_line(console, row_cells, widths, numeric, style=style)
            if details is not None:
                print_details(console, details[number], indent=_DETAIL_INDENT)

    def print_fields(self, type: str, fields: Mapping[str, object]) -> None:
        """Names and values, one pair per line, or one object."""
        if self.is_json:
            self.print_object(type, {name.replace(" ", "_"): fields[name] for name in fields})
        else:
            pairs = [(name, _text(value)) for name, value in fields.items()]
            print_details(make_console(), pairs, indent=0)

    # Notes on standard error

    def note(self, text: str) -> None:
        """What a person wants to know besides the result."""
        if not self.is_quiet:
            click.echo(text, err=True)

    def warn(self, text: str) -> None:
        click.secho(text, fg="yellow", err=True)

    def print_failure(self, text: str) -> None:
        """A part of the work that failed while the command continues."""
        click.secho(text, fg="red", err=True)

    def print_partition_failure(self, partition: object, failure: str) -> None:
        """A failure that may name its partition already."""
        self.print_failure(f"{partition}: {failure.removeprefix(f'{partition}: ')}")

    def confirm(self, action: str, *, is_confirmed: bool) -> None:
        """Ask before something that cannot be undone; `--yes` confirms without a prompt."""
        if is_confirmed:
            return
        self.check_terminal(action)
        click.confirm(
            f"{action[:1].upper()}{action[1:]}? This cannot be undone.", abort=True, err=True
        )

    def check_terminal(self, action: str) -> None:
        """Raises InvalidRequest if there is no terminal to ask on."""
        if not sys.stdin.isatty():
            raise InvalidRequest(
                f"this would {action} and cannot be undone; add --yes, because there is no "
                "terminal to ask on"
            )

    # Progress

    @contextlib.contextmanager
    def progress(self, title: str, total_bytes: int | None = None) -> Iterator["Progress"]:
        """A bar on standard error, on a terminal and for work that takes a while."""
        if self.is_quiet or (total_bytes is not None and total_bytes < _LONG_BYTES):
            yield Progress()
            return
        with _open_bar(title, total_bytes, has_records=False) as bar:
            yield bar

    @contextlib.contextmanager
    def record_progress(self, title: str, streams: Sequence[BinaryIO]) -> Iterator["Progress"]:
        """A bar for records from streams; not shown if a stream is a terminal."""
        if self.is_quiet or any(map(_is_terminal, streams)):
            yield Progress()
            return
        with _open_bar(title, _total_bytes(streams), has_records=True) as bar:
            yield bar


class Progress:
    """One bar; without a terminal its methods do nothing."""

    def __init__(self, bars: Any = None, task: Any = None) -> None:
        self._bars = bars
        self._task = task
        self._record_count = 0

    def advance(self, size: int, record_count: int = 0) -> None:
        self._record_count += record_count
        if self._bars is not None:
            self._bars.update(self._task, advance=size, records=self._record_count)

    def show(self, title: str, done_bytes: int, total_bytes: int) -> None:
        """Replace the title and both sizes, for work of several phases."""
        if self._bars is not None:
            self._bars.update(
                self._task, description=title, completed=done_bytes, total=total_bytes
            )


@contextlib.contextmanager
def _open_bar(title: str, total: int | None, *, has_records: bool) -> Iterator[Progress]:
    if not sys.stderr.isatty():
        yield Progress()
        return
    from rich import progress
    from rich.console import Console

    columns: list[progress.ProgressColumn] = [
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
    ]
    if has_records:
        text = "{task.fields[records]:,} records"
        columns += [progress.TransferSpeedColumn(), progress.TextColumn(text)]
    else:
        columns.append(progress.TimeRemainingColumn())
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield Progress(bars, bars.add_task(title, total=total, records=0))


# Ctrl-C during long work: the first takes effect between two chunks, so that it never interrupts
# a swap or a rename; a second one, for a chunk that does not end, takes effect at once.


@contextlib.contextmanager
def interrupts_between(show: Callable[P, None]) -> Iterator[Callable[P, None]]:
    """A `show` that raises KeyboardInterrupt if one arrived since the last call."""
    was_interrupted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal was_interrupted
        if was_interrupted:
            raise KeyboardInterrupt
        was_interrupted = True

    def check(*args: P.args, **kwargs: P.kwargs) -> None:
        if was_interrupted:
            raise KeyboardInterrupt
        show(*args, **kwargs)

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield show
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
    if was_interrupted:
        raise KeyboardInterrupt


@contextlib.contextmanager
def interruptible_progress(output: Output) -> Iterator[Callable[[str, int, int], None]]:
    """A bar that shows a title, bytes done and bytes in total, and stops at an interrupt."""
    with output.progress("") as bar, interrupts_between(bar.show) as show:
        yield show


@contextlib.contextmanager
def note_interrupt(output: Output, sentence: str) -> Iterator[None]:
    """Print what an interrupt left behind; `main` turns it into an exit status."""
    try:
        yield
    except KeyboardInterrupt:
        output.warn(sentence)
        raise


def _is_terminal(stream: BinaryIO) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return stream.isatty()
    return False


def _total_bytes(streams: Sequence[BinaryIO]) -> int | None:
    """The size of all files; None if one is a pipe."""
    total = 0
    for stream in streams:
        try:
            status = os.fstat(stream.fileno())
        except (OSError, ValueError):
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        total += status.st_size
    return total


def make_console() -> "Console":
    """Standard output: as wide as the terminal, elsewhere as COLUMNS says, or 100."""
    from rich.console import Console

    width = None
    if not sys.stdout.isatty():
        columns = os.environ.get("COLUMNS", "")[:6]
        is_number = columns.isascii() and columns.isdigit() and int(columns) > 0
        width = int(columns) if is_number else _PLAIN_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, markup=False)


def print_details(console: "Console", pairs: Details, *, indent: int) -> None:
    """Labels, and beside each its text, which wraps between words."""
    if not pairs:
        return
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in pairs:
        grid.add_row(Text(label), Text(text))
    with console.capture() as captured:
        console.print(Padding(grid, (0, 0, 0, indent), expand=False))
    for line in captured.get().rstrip("\n").split("\n"):
        console.print(Text(line.rstrip()), soft_wrap=True)  # a grid fills its lines with blanks


def draw_bar(size: int, largest: int, width: int) -> str:
    """A bar as long as its share of the largest, in eighths of a character."""
    eighths = round(size * width * 8 / largest) if largest else 0
    whole, part = divmod(eighths, 8)
    return "█" * whole + ("" if part == 0 else "▏▎▍▌▋▊▉"[part - 1])


def _print_line(
    console: "Console",
    cells: Sequence[str],
    widths: Sequence[int],
    numeric: Sequence[bool],
    *,
    style: str = "",
) -> None:
    from rich.text import Text

    line = "  ".join(
        cell.rjust(width) if is_number else cell.ljust(width)
        for cell, width, is_number in zip(cells, widths, numeric, strict=True)
    )
    console.print(Text(line.rstrip(), style), soft_wrap=not sys.stdout.isatty())


def _text(cell: object) -> str:
    """A cell as people read it."""
    if isinstance(cell, Mapping):
        return " ".join(f"{name}={value}" for name, value in cell.items()) or "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return "-" if cell is None else str(cell)
