"""Shapes of what Debezium writes to Apache Kafka: rows, whole transactions, and new beginnings."""

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import pytest

from tests.conformance.tools.broker import Broker
from tests.conformance.tools.debezium_table import DebeziumTable
from tests.conformance.tools.shape_auditor import Auditor
from tests.support.npm_clients import NpmClients
from tests.support.shape_audience import Audience
from tests.support.shape_server import ShapeServer

pytestmark = [pytest.mark.java, pytest.mark.timeout(280)]

Serve = Callable[..., ShapeServer]
FORMS = pytest.mark.parametrize("has_schema", [False, True], ids=["bare", "with-schema"])
ACCOUNTS: Final = 20
ALL: Final = 100 * ACCOUNTS
"""What all accounts have together, whatever moves between them."""


def _account(balance: int) -> dict[str, Any]:
    return {"balance": balance, "rate": 0.125, "is_open": True, "note": None, "large": "x" * 500}


def _open_accounts(table: DebeziumTable, operation: str | None) -> None:
    for id in range(ACCOUNTS):
        table.put(id, _account(100), operation)


def _transfer(table: DebeziumTable, name: str, draws: random.Random) -> None:
    """Several accounts at once: some are closed, and opened under another id."""
    table.begin(name)
    ids = draws.sample(sorted(table.state), 4)
    moved = draws.randrange(50)
    for id, amount in zip(ids[:2], (-moved, moved), strict=True):
        row = table.state[id]
        if draws.random() < 0.5:
            table.touch(id, "large", balance=row["balance"] + amount)
        else:
            table.put(id, {**_columns(row), "balance": row["balance"] + amount})
    for id in ids[2:]:
        if draws.random() < 0.5:
            columns = _columns(table.state[id])
            table.delete(id)
            table.put(max(table.state) + 1, columns)
    table.end()


def _columns(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "id"}


@FORMS
@pytest.mark.parametrize("partition_count", [1, 3])
def test_every_operation_leaves_the_right_rows(
    kafka: Broker,
    serve: Serve,
    npm: NpmClients,
    name: str,
    partition_count: int,
    *,
    has_schema: bool,
) -> None:
    table = DebeziumTable(
        kafka.address, name, "accounts", partition_count=partition_count, has_schema=has_schema
    )
    draws = random.Random(partition_count)
    _open_accounts(table, "r")
    table.flush()
    server = serve("--debezium", table.topic)
    asked = {"table": table.topic}
    with Audience(server.host, server.port, npm) as audience:
        audience.join(asked, table.rows)
        audience.join({**asked, "where": "balance < 0 AND id > '3'"}, lambda: _overdrawn(table))
        audience.settle()
        for turn in range(60):
            _transfer(table, f"turn-{turn}", draws)
            if turn == 20:
                table.noise()
                table.flush()
                server.kill()
            if turn == 30:
                server.start()
            if turn == 40:
                table.has_schema = not has_schema
        table.flush()
        audience.settle()
        audience.join(asked, table.rows)
        audience.settle()
        assert audience.errors() == []
        assert audience.refetch_count() == 0


def _overdrawn(table: DebeziumTable) -> dict[str, Any]:
    return {key: row for key, row in table.rows().items() if row["balance"] < 0 and row["id"] > 3}


@FORMS
def test_transactions_of_the_source_are_seen_whole(
    kafka: Broker, serve: Serve, npm: NpmClients, name: str, *, has_schema: bool
) -> None:
    table = DebeziumTable(kafka.address, name, "accounts", has_schema=has_schema)
    draws = random.Random(7)
    _open_accounts(table, "r")
    table.flush()
    server = serve("--debezium", f"{table.topic}={table.transaction_topic}")
    with Audience(server.host, server.port, npm) as audience:
        make = partial(Auditor, total=ALL)
        auditors = audience.join({"table": table.topic}, table.rows, light_count=2, make=make)
        audience.settle()
        for turn in range(150):
            _transfer(table, f"turn-{turn}", draws)
            if turn % 3 == 0:
                table.flush()
            if turn % 15 == 0:
                table.flush()
                audience.settle()
            if turn == 70:
                server.kill()
                server.start()
        table.flush()
        audience.settle()
        assert audience.errors() == []
        assert audience.refetch_count() == 0
        assert min(one.audit_count for one in auditors if isinstance(one, Auditor)) >= 10


@FORMS
@pytest.mark.parametrize("what", ["truncate", "change_schema"])
def test_what_voids_a_table_sends_clients_to_a_new_shape(
    kafka: Broker, serve: Serve, npm: NpmClients, name: str, what: str, *, has_schema: bool
) -> None:
    table = DebeziumTable(kafka.address, name, "accounts", has_schema=has_schema)
    _open_accounts(table, "r")
    table.flush()
    server = serve("--debezium", table.topic)
    with Audience(server.host, server.port, npm) as audience:
        audience.join({"table": table.topic}, table.rows)
        audience.settle()
        handles = audience.handles()
        for turn in range(2):
            getattr(table, what)()
            table.put(1_000 + turn, _account(7))
            table.flush()
            audience.settle()
            handles |= audience.handles()
        assert len(audience.handles()) == 1
        assert len(handles) == 3
        assert audience.refetch_count() == 2 * audience.client_count
        assert audience.errors() == []
