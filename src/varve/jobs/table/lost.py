"""What is left of a table that its catalog has no longer: found at the locations that were noted.

Invariant  files may go only below a location that no table of the catalog or of another note uses,
           and whose metadata says that varve made it of the topic; any other is told as out of
           reach, with what to do.
Crash      the metadata that tells whose the files are goes last: a later run finds the rest.
"""

import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow.fs as pafs  # type: ignore[import-untyped]  # ships no types
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io.pyarrow import PyArrowFileIO

from varve.jobs.outputs.notes import Output
from varve.jobs.table.catalog import find_folder, told_errors
from varve.jobs.table.files import DATA, MARKS, delete_files, list_files
from varve.jobs.table.history import METADATA
from varve.jobs.table.state import TOPIC_ID

_TELLING: Final = ".metadata.json"
_ALIKE: Final = ("s3a://", "s3n://")


@dataclass(frozen=True, slots=True)
class LostTable:
    """The files below a location: those with rows, and all others of the table."""

    location: str
    io: PyArrowFileIO
    data: tuple[str, ...]
    others: tuple[str, ...]

    def remove(self) -> list[str]:
        with told_errors(self.location):
            return delete_files(self.io, (*self.data, *self.others))


@dataclass(frozen=True, slots=True)
class LostTables:
    """What can be looked into, and sentences about what cannot."""

    found: tuple[LostTable, ...] = ()
    out_of_reach: tuple[str, ...] = ()


def find_lost(
    output: Output, catalog: Catalog, *, own: Collection[str], used: Sequence[str]
) -> LostTables:
    """What is left at the noted locations where none of the output's own tables is.

    `used` are locations of tables that other notes speak of.
    """
    lost = [one for one in output.locations if _bare(one) not in {_bare(two) for two in own}]
    if not lost:
        return LostTables()
    io = PyArrowFileIO(dict(catalog.properties))
    with told_errors(f"table {output.name}"):
        tables = {f"table {name}": at for name, at in _find_tables(catalog)}
    tables |= {f"a table at {at}": at for at in used}
    found, told = [], []
    for location in lost:
        with told_errors(location):
            one = _look(output, location, io, tables)
        if isinstance(one, LostTable):
            found.append(one)
        elif one is not None:
            told.append(one)
    return LostTables(tuple(found), tuple(told))


def overlap(one: str, other: str) -> bool:
    """Whether two locations are one, or lie one in the other."""
    first, second = f"{_bare(one)}/", f"{_bare(other)}/"
    return first.startswith(second) or second.startswith(first)


def _look(
    output: Output, location: str, io: PyArrowFileIO, tables: dict[str, str]
) -> LostTable | str | None:
    """The files, or why they are out of reach; None where nothing is left."""
    whose = f"{location}, where table {output.name} was before it left its catalog"
    if not _is_reached(output, location, io):
        return (
            f"{whose}, is not there: mount or put it back and erase again, or, if it is gone for "
            f"good, forget the note: varve job outputs {output.topic} --forget {output.id}"
        )
    data = [one.path for one in list_files(io, location, DATA)]
    told = [one.path for one in list_files(io, location, METADATA)]
    if not data and not told:
        return None
    sharing = sorted(name for name, at in tables.items() if overlap(location, at))
    if sharing:
        return (
            f"{whose}, holds files and is in use by {sharing[0]}: rows to be erased may be among "
            "them. Drop that table with its files, or give it its name back, and erase again"
        )
    telling = [one for one in told if one.endswith(_TELLING)]
    if not telling or not all(_read_topic_id(io, one) == output.topic_id for one in telling):
        return (
            f"{whose}, holds {len(data) + len(told)} files, and no metadata that says they are of "
            f"topic {output.topic} alone: rows to be erased may be among them. Remove what is "
            "yours there by hand"
        )
    rest = [one for one in told if not one.endswith(_TELLING)]
    marks = [one.path for one in list_files(io, location, MARKS)]
    return LostTable(location, io, tuple(data), (*marks, *rest, *telling))


def _is_reached(output: Output, location: str, io: PyArrowFileIO) -> bool:
    """Whether a location without files is empty, and not a disk or a bucket that is missing."""
    folder = find_folder(location)
    if folder is not None:
        warehouse = dict(output.how).get("warehouse")
        root = None if warehouse is None else find_folder(warehouse)
        is_inside = root is not None and overlap(folder, root) and len(root) <= len(folder)
        return os.path.isdir(folder) or (is_inside and root is not None and os.path.isdir(root))
    scheme, netloc, path = io.parse_location(location, io.properties)
    bucket = path.partition("/")[0]
    (told,) = io.fs_by_scheme(scheme, netloc).get_file_info([bucket])
    return bool(told.type != pafs.FileType.NotFound)


def _read_topic_id(io: PyArrowFileIO, path: str) -> str | None:
    """Of which topic a table was made; None where its metadata does not tell."""
    with io.new_input(path).open() as stream:
        data = stream.read()
    try:
        properties = json.loads(data)["properties"]
        return str(properties[TOPIC_ID])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _find_tables(catalog: Catalog) -> Iterator[tuple[str, str]]:
    """Every table of a catalog by its name, with its location."""
    waiting = list(catalog.list_namespaces())
    while waiting:
        namespace = waiting.pop()
        try:
            names = catalog.list_tables(namespace)
            below = catalog.list_namespaces(namespace)
        except NoSuchNamespaceError:
            continue
        waiting += [one for one in below if one != namespace]
        for name in names:
            try:
                yield ".".join(name), catalog.load_table(name).location()
            except NoSuchTableError:
                continue


def _bare(location: str) -> str:
    """A location as it is compared."""
    for alike in _ALIKE:
        if location.startswith(alike):
            location = f"s3://{location.removeprefix(alike)}"
    folder = find_folder(location)
    return location.rstrip("/") if folder is None else os.path.realpath(folder)
