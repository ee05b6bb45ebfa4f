"""`varve shape serve --snapshot`: rows are those of a snapshot, and go on from where it ends.

Records are written while the snapshot is taken and while it is loaded.
"""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests.support.kafka_server import ServerMaker
from tests.support.shape_audience import Audience
from tests.support.shape_server import ShapeServer
from tests.support.shape_topic import ShapeTopic
from tests.support.shape_traffic import Traffic
from tests.support.spark_session import spark as spark
from tests.support.steady_writer import SteadyWriter
from varve.cli.main import app

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(120)]


def test_rows_come_from_the_snapshot_and_changes_from_the_broker(
    spark: SparkSession, tmp_path: Path
) -> None:
    data, place = tmp_path / "data", tmp_path / "place"
    with ServerMaker() as maker, maker.start(data) as broker:
        topic = ShapeTopic(broker.bootstrap, "parcels", partition_count=2)
        traffic = Traffic(topic)
        traffic.add(100)
        traffic.change(400)
        with SteadyWriter(lambda: traffic.change(20)) as writer:
            order = ["job", "snapshot", topic.name, "--dir", str(data), "--to", str(place)]
            taken = CliRunner().invoke(app, [*order, "--json"])
            assert taken.exit_code == 0, taken.stderr
            row_count = json.loads(taken.stdout.splitlines()[0])["rows"]
            given = ("--snapshot", f"{topic.name}={place}")
            with (
                ShapeServer(broker.bootstrap, tmp_path, *given) as server,
                Audience(server.host, server.port, None) as audience,
            ):
                audience.join({"table": topic.name}, topic.rows)
                server.ask_handle(table=topic.name)
                writer.__exit__()
                audience.settle()
                server.kill()
                traffic.change(50)
                server.start()
                audience.settle()
                assert audience.refetch_count() == 0
    told = server.log.read_text()
    assert writer.step_count > 0
    assert row_count > 0
    assert told.count("table is loaded") == 1
    assert f"how=snapshot file:{place}" in told
