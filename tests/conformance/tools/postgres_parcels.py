"""A table of a real database with a column of most kinds, and its rows as Debezium writes them.

Invariant  what is expected is asked of the database: nothing is remembered here but the ids.
"""

import base64
import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from tests.conformance.tools.postgres import Postgres
from tests.support.shape_topic import Rows

LARGE_BYTES: Final = 6_000
"""So large that it is stored apart, and not told again while it stays the same (TOAST)."""

_TABLE: Final = """
    id bigint PRIMARY KEY,
    name text,
    weight numeric(10, 2),
    price numeric,
    is_open boolean NOT NULL,
    ratio double precision,
    made timestamp(6),
    seen timestamptz,
    day date,
    tags text[],
    counts integer[],
    data jsonb,
    code uuid,
    raw bytea,
    large text
"""
_GONE: Final = "NULL::integer"
_AS_JSON: Final = {
    "id": "id",
    "name": "name",
    "weight": "weight::text",
    "price": "price::text",
    "is_open": "is_open",
    "ratio": "ratio",
    "made": "(extract(epoch FROM made) * 1000000)::bigint",
    "seen": """to_char(seen AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')""",
    "day": "day - date '1970-01-01'",
    "tags": "to_json(tags)",
    "counts": "to_json(counts)",
    "data": "data::text",
    "code": "code::text",
    "raw": r"replace(encode(raw, 'base64'), E'\n', '')",
    "large": "large",
}


class Parcels:
    """The table `public.<name>`; every change is drawn from a seed."""

    def __init__(self, database: Postgres, name: str, seed: int) -> None:
        self.name = name
        self._database = database
        self._draws = random.Random(seed)
        self._next_id = 1
        self._columns = dict(_AS_JSON)
        database.run(
            f"CREATE TABLE {name} ({_TABLE})",
            f"ALTER TABLE {name} ALTER COLUMN large SET STORAGE EXTERNAL",
        )

    # What happens to the table

    def add(self, count: int) -> None:
        self._database.run(*(self._insert() for _ in range(count)))

    def change(self, count: int) -> None:
        """So many changes of every kind, each of them a transaction."""
        self._database.run(*self._draw_changes(count))

    def change_together(self, count: int) -> None:
        """The same in one transaction."""
        self._database.run("BEGIN", *self._draw_changes(count), "COMMIT")

    def change_in_vain(self, count: int) -> None:
        """A transaction that comes to nothing."""
        next_id = self._next_id
        self._database.run("BEGIN", *self._draw_changes(count), "ROLLBACK")
        self._next_id = next_id

    def truncate(self) -> None:
        """Clients begin anew, and columns that are gone are so for them as well."""
        self._database.run(f"TRUNCATE {self.name}")
        self._columns = {name: one for name, one in self._columns.items() if one != _GONE}

    def add_column(self, name: str) -> None:
        """A column more, which every row has from now on: the database tells of changes alone."""
        self._database.run(
            f"ALTER TABLE {self.name} ADD COLUMN {name} integer",
            f"UPDATE {self.name} SET {name} = id % 5",
        )
        self._columns[name] = name

    def drop_column(self, name: str) -> None:
        """Who followed the rows has a null in its place."""
        self._database.run(
            f"ALTER TABLE {self.name} DROP COLUMN {name}",
            f"UPDATE {self.name} SET is_open = NOT is_open",
        )
        self._columns[name] = _GONE

    def identify_by(self, what: str) -> None:
        """What the database tells of a row before a change: FULL, or its key (DEFAULT)."""
        self._database.run(f"ALTER TABLE {self.name} REPLICA IDENTITY {what}")

    # What it comes to

    def rows(self, prefix: str, where: str = "TRUE", columns: Sequence[str] | None = None) -> Rows:
        """What a client of a shape of the topic `<prefix>.public.<name>` ends with."""
        chosen = list(self._columns) if columns is None else ["id", *columns]
        asked = ", ".join(f"{self._columns[name]} AS {name}" for name in chosen)
        found = self._database.ask(f"SELECT {asked} FROM {self.name} WHERE {where}")
        topic = f"{prefix}.public.{self.name}"
        return {f'"public"."{topic}"/"{row["id"]}"': _as_debezium(row) for row in found}

    # How it is said

    def _draw_changes(self, count: int) -> list[str]:
        drawn = self._draws.choices(
            (self._insert, self._update, self._touch, self._move, self._delete),
            (4, 3, 4, 2, 2),
            k=count,
        )
        return [draw() for draw in drawn]

    def _insert(self) -> str:
        id, self._next_id = self._next_id, self._next_id + 1
        columns = {"id": str(id), **self._draw_columns()}
        return (
            f"INSERT INTO {self.name} ({', '.join(columns)}) VALUES ({', '.join(columns.values())})"
        )

    def _update(self) -> str:
        """Every column but the key."""
        told = ", ".join(f"{name} = {value}" for name, value in self._draw_columns().items())
        return f"UPDATE {self.name} SET {told} WHERE id = {self._any_id()}"

    def _touch(self) -> str:
        """What is large stays."""
        value = self._draws.randrange(100)
        return (
            f"UPDATE {self.name} SET ratio = {value / 8}, is_open = NOT is_open "
            f"WHERE id = {self._any_id()}"
        )

    def _move(self) -> str:
        """A key becomes another one."""
        id, self._next_id = self._next_id, self._next_id + 1
        return f"UPDATE {self.name} SET id = {id}, name = 'moved' WHERE id = {self._any_id()}"

    def _delete(self) -> str:
        return f"DELETE FROM {self.name} WHERE id = {self._any_id()}"

    def _any_id(self) -> str:
        """Of a row that is there when the statement runs; late ones are more likely."""
        place = int(self._draws.random() ** 2 * 30)
        return f"(SELECT id FROM {self.name} ORDER BY id DESC LIMIT 1 OFFSET {place})"

    def _draw_columns(self) -> dict[str, str]:
        draw = self._draws
        large = "".join(draw.choices("abcdefgh", k=8)) * (LARGE_BYTES // 8)
        kinds: dict[str, Callable[[], str]] = {
            "name": lambda: _quote(draw.choice(["", "Zoë", 'it\'s \\ "q"\t\n', "日本", "plain"])),
            "weight": lambda: f"{draw.randrange(-(10**8), 10**8) / 100:.2f}",
            # Debezium writes what it finds at first without zeros at the end.
            "price": lambda: str(
                Decimal(draw.randrange(-(10**20), 10**20) * 10 + 7).scaleb(-draw.randrange(12))
            ),
            "is_open": lambda: str(draw.random() < 0.5),
            "ratio": lambda: str(draw.randrange(1_000) / 8),
            "made": lambda: _quote(
                f"20{draw.randrange(10, 40)}-02-03 04:05:06.{draw.randrange(10**6):06}"
            ),
            "seen": lambda: _quote(
                f"2024-06-0{draw.randrange(1, 9)} 23:05:06.{draw.randrange(10**6):06}+02"
            ),
            "day": lambda: _quote(f"19{draw.randrange(50, 99)}-12-31"),
            "tags": lambda: draw.choice(["'{}'", "ARRAY['a', NULL, 'b \"c\"']", "'{x}'"]),
            "counts": lambda: draw.choice(["'{}'", "'{1,NULL,-3}'"]),
            "data": lambda: _quote(
                draw.choice(['{"b": [1, 2.50], "a": null}', "[]", '"text"', "null"])
            ),
            "code": lambda: _quote(f"{draw.randrange(16**32):032x}"),
            "raw": lambda: _quote(f"\\x{draw.randrange(16**80):080x}"),
            "large": lambda: _quote(large),
        }
        return {
            name: "NULL" if name != "is_open" and draw.random() < 0.1 else make()
            for name, make in kinds.items()
        }


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _as_debezium(row: dict[str, Any]) -> dict[str, Any]:
    """Numbers of a fixed scale are bytes; others are bytes and a scale."""
    made = dict(row)
    for name, has_scale in (("weight", True), ("price", False)):
        if made.get(name) is None:
            continue
        value, scale = _unscaled(Decimal(made[name]))
        made[name] = value if has_scale else {"scale": scale, "value": value}
    return made


def _unscaled(number: Decimal) -> tuple[str, int]:
    """The digits as Java's big integers are written, and how many of them are behind the point."""
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    whole = int("".join(map(str, digits))) * (-1 if sign else 1)
    size = (whole if whole >= 0 else ~whole).bit_length() // 8 + 1
    return base64.b64encode(whole.to_bytes(size, "big", signed=True)).decode(), -exponent
