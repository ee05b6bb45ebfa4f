"""Shapes of tables of a real PostgreSQL, which Debezium's connector follows into a broker.

What clients end with is compared with what the database says to SELECT.

Carries S1, S2.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient

from tests.conformance.tools.broker import Broker
from tests.conformance.tools.connect import Connect, capture
from tests.conformance.tools.postgres import Postgres, find_postgres
from tests.conformance.tools.postgres_accounts import TOTAL, Accounts
from tests.conformance.tools.postgres_parcels import Parcels
from tests.conformance.tools.program import pause
from tests.conformance.tools.shape_auditor import Auditor
from tests.conformance.tools.toolchain import Toolchain, ToolchainMissing, prepare_connect
from tests.support.kafka_server import ServerProcess
from tests.support.npm_clients import NpmClients
from tests.support.shape_audience import Audience
from tests.support.shape_server import ShapeServer
from tests.support.steady_writer import SteadyWriter

pytestmark = [pytest.mark.java, pytest.mark.timeout(280)]

PEERS = pytest.mark.parametrize(
    ("peer", "has_schema"), [("varve", False), ("kafka", True)], ids=["varve", "kafka-with-schema"]
)
WHERE: Final = "is_open AND ratio >= 40 AND name <> 'moved'"
COLUMNS: Final = ("name", "weight", "tags", "large")
PATIENCE_SECONDS: Final = 30.0


@pytest.fixture(scope="module")
def connect_tools() -> Toolchain:
    try:
        return prepare_connect()
    except ToolchainMissing as missing:
        pytest.skip(f"no database is followed by Debezium: {missing}")


@pytest.fixture(scope="module")
def database(connect_tools: Toolchain) -> Iterator[Postgres]:
    programs = find_postgres()
    if programs is None:
        pytest.skip("no database is followed by Debezium: there is no PostgreSQL (apt: postgresql)")
    with Postgres(programs) as made:
        yield made


def _find_bootstrap(request: pytest.FixtureRequest, peer: str) -> str:
    """Where varve's server or Apache Kafka is found, started if need be."""
    if peer == "kafka":
        kafka: Broker = request.getfixturevalue("kafka")
        return kafka.address
    broker: ServerProcess = request.getfixturevalue("broker")
    return broker.bootstrap


def _wait_for_topic(bootstrap: str, topic: str) -> None:
    """The connector makes topics when it has something for them."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for _ in range(300):
        if topic in admin.list_topics(timeout=PATIENCE_SECONDS).topics:
            return
        pause(0.1)
    raise AssertionError(f"the connector has not made {topic}")


@PEERS
def test_whatever_happens_to_a_table_clients_end_with_its_rows(
    connect_tools: Toolchain,
    database: Postgres,
    npm: NpmClients,
    name: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    peer: str,
    *,
    has_schema: bool,
) -> None:
    bootstrap = _find_bootstrap(request, peer)
    table = Parcels(database, name, seed=int(has_schema))
    table.add(40)
    prefix = f"of_{name}"
    topic = f"{prefix}.public.{name}"
    connector = capture(database, prefix, f"public.{name}")
    with (
        Connect(
            connect_tools, tmp_path / "connect", bootstrap, connector, has_schema=has_schema
        ) as connect,
        ShapeServer(bootstrap, tmp_path, "--debezium", f"{topic}={prefix}.transaction") as server,
        Audience(server.host, server.port, npm) as audience,
    ):
        asked = {"table": topic}
        _wait_for_topic(bootstrap, topic)
        audience.join(asked, lambda: table.rows(prefix))
        audience.join(
            {**asked, "where": WHERE, "columns": ",".join(COLUMNS)},
            lambda: table.rows(prefix, WHERE, COLUMNS),
        )
        audience.settle()
        for identity in ("DEFAULT", "FULL"):
            table.identify_by(identity)
            table.change(60)
            table.change_together(60)
            table.change_in_vain(20)
            audience.settle()
            # In order: nothing is told twice.
            connect.stop()
            table.change(30)
            connect.start()
            table.change(30)
            audience.settle()
            server.kill()
            table.change(30)
            table.change_together(30)
            server.start()
            table.change(30)
            audience.settle()
            # As a crash: what came last is told once more.
            table.change(30)
            connect.kill()
            table.change_together(30)
            connect.start()
            table.change(30)
            audience.settle()
        assert audience.refetch_count() == 0
        table.add_column("shelf")
        table.change(30)
        audience.settle()
        audience.join(asked, lambda: table.rows(prefix))
        table.drop_column("shelf")
        audience.settle()
        assert audience.refetch_count() == 0
        table.truncate()
        table.add(20)
        audience.settle()
        assert audience.refetch_count() >= audience.client_count
        table.change(30)
        server.kill()
        table.change_together(30)
        server.start()
        audience.join(asked, lambda: table.rows(prefix))
        audience.settle()
        assert audience.errors() == []


def _begin_meanwhile(broker: ServerProcess, table: Accounts, topic: str, data: Path) -> None:
    """A server that has nothing yet begins while transactions come in."""
    prefix = topic.partition(".")[0]
    for turn in range(2):
        home = data / str(turn)
        home.mkdir(parents=True)
        given = ("--debezium", f"{topic}={prefix}.transaction")
        with (
            SteadyWriter(lambda: table.transfer(5)) as writer,
            ShapeServer(broker.bootstrap, home, *given) as server,
            Audience(server.host, server.port, None) as audience,
        ):
            make = partial(Auditor, total=TOTAL)
            audience.join({"table": topic}, lambda: table.rows(topic), make=make)
            server.ask_handle(table=topic)
            writer.__exit__()
            audience.settle()


def test_a_transaction_of_the_database_is_seen_whole(
    connect_tools: Toolchain,
    database: Postgres,
    broker: ServerProcess,
    npm: NpmClients,
    name: str,
    tmp_path: Path,
) -> None:
    table = Accounts(database, name, seed=5)
    prefix = f"of_{name}"
    topic = f"{prefix}.public.{name}"
    connector = capture(database, prefix, f"public.{name}", f"public.{name}_log")
    with (
        Connect(connect_tools, tmp_path / "connect", broker.bootstrap, connector) as connect,
        ShapeServer(
            broker.bootstrap, tmp_path, "--debezium", f"{topic}={prefix}.transaction"
        ) as server,
        Audience(server.host, server.port, npm) as audience,
    ):
        _wait_for_topic(broker.bootstrap, topic)
        asked = {"table": topic}
        # What the connector finds at first comes row by row.
        audience.join(asked, lambda: table.rows(topic))
        audience.settle()
        make = partial(Auditor, total=TOTAL)
        auditors = audience.join(asked, lambda: table.rows(topic), npm_count=0, make=make)
        audience.settle()
        for turn in range(12):
            table.transfer(15)
            if turn == 4:
                connect.stop()
                table.transfer(15)
                connect.start()
            if turn == 8:
                server.kill()
                table.transfer(15)
                server.start()
            audience.settle()
        assert audience.refetch_count() == 0
        _begin_meanwhile(broker, table, topic, tmp_path / "late")
        table.refill()
        table.transfer(15)
        audience.settle()
        assert audience.errors() == []
        assert min(one.audit_count for one in auditors if isinstance(one, Auditor)) >= 10
