"""Accounts in a real database: whatever moves between them, they have the same together.

Invariant  every transaction leaves the sum of all balances as it is, and no statement of it does.
"""

import random
from typing import Final

from tests.conformance.tools.postgres import Postgres
from tests.support.shape_topic import Rows

COUNT: Final = 20
TOTAL: Final = 100 * COUNT


class Accounts:
    """The table `public.<name>`, and `<name>_log`, which the same transactions write to."""

    def __init__(self, database: Postgres, name: str, seed: int) -> None:
        self.name = name
        self._database = database
        self._draws = random.Random(seed)
        self._ids = list(range(COUNT))
        database.run(
            f"CREATE TABLE {name} (id integer PRIMARY KEY, balance integer, note text)",
            f"CREATE TABLE {name}_log (number serial PRIMARY KEY, told text)",
            f"ALTER TABLE {name} ALTER COLUMN note SET STORAGE EXTERNAL",
            f"INSERT INTO {name} SELECT id, 100, repeat('x', 3000) "
            f"FROM generate_series(0, {COUNT - 1}) AS id",
        )

    def transfer(self, count: int) -> None:
        """So many transactions, each of several statements."""
        said: list[str] = []
        for _ in range(count):
            said += ["BEGIN", *self._transfer(), "COMMIT"]
        self._database.run(*said)

    def refill(self) -> None:
        """All rows go and come anew, in one transaction."""
        self._ids = list(range(COUNT))
        self._database.run(
            "BEGIN",
            f"TRUNCATE {self.name}",
            f"INSERT INTO {self.name} SELECT id, 100, 'anew' "
            f"FROM generate_series(0, {COUNT - 1}) AS id",
            "COMMIT",
        )

    def rows(self, topic: str) -> Rows:
        found = self._database.ask(f"SELECT * FROM {self.name}")
        return {f'"public"."{topic}"/"{row["id"]}"': row for row in found}

    def _transfer(self) -> list[str]:
        giver, taker, mover, closer = self._draws.sample(self._ids, 4)
        amount = self._draws.randrange(1, 50)
        said = [
            f"UPDATE {self.name} SET balance = balance - {amount} WHERE id = {giver}",
            f"INSERT INTO {self.name}_log (told) VALUES ('{giver} to {taker}')",
            f"UPDATE {self.name} SET balance = balance + {amount} WHERE id = {taker}",
        ]
        if self._draws.random() < 0.5:
            said.append(f"UPDATE {self.name} SET id = {self._replace(mover)} WHERE id = {mover}")
        if self._draws.random() < 0.5:
            said += self._close(closer)
        return said

    def _close(self, id: int) -> list[str]:
        """What it has goes to a new account."""
        new = self._replace(id)
        return [
            f"INSERT INTO {self.name} SELECT {new}, balance, 'of {id}' FROM {self.name} "
            f"WHERE id = {id}",
            f"DELETE FROM {self.name} WHERE id = {id}",
        ]

    def _replace(self, id: int) -> int:
        new = max(self._ids) + 1
        self._ids[self._ids.index(id)] = new
        return new
