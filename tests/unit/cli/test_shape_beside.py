"""`varve shape serve --broker-dir`: rows are read from the broker's files first, then from it.

Records are written all the while.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import varve
from tests.support.kafka_server import ServerMaker
from tests.support.serving import Serving
from tests.support.shape_audience import Audience
from tests.support.shape_server import ShapeServer
from tests.support.shape_topic import ShapeTopic
from tests.support.shape_traffic import Traffic
from tests.support.steady_writer import SteadyWriter
from tests.support.varve_command import run_varve
from varve.disk import RealFileSystem
from varve.foundation.clock import SystemClock
from varve.http.shapes.launch import make_feed_factory
from varve.kafka_client.address import parse_cluster_address
from varve.shapes.feed.decoders import UNAVAILABLE
from varve.shapes.opening import TopicOptions


@pytest.mark.timeout(120)
def test_rows_come_from_the_files_and_changes_from_the_broker(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerMaker() as maker, maker.start(data) as broker:
        small = {"segment.bytes": "20000", "cleanup.policy": "compact"}
        topic = ShapeTopic(broker.bootstrap, "parcels", partition_count=2, configs=small)
        traffic = Traffic(topic)
        traffic.add(100)
        traffic.change(400)
        with ShapeServer(broker.bootstrap, tmp_path, "--broker-dir", str(data)) as server:
            with Audience(server.host, server.port, None) as audience:
                with SteadyWriter(lambda: traffic.change(20)) as writer:
                    audience.join({"table": topic.name}, topic.rows)
                    handle = server.ask_handle(table=topic.name)
                traffic.change(50)
                audience.settle()
                server.kill()
                traffic.change(50)
                server.start()
                audience.settle()
                assert audience.refetch_count() == 0
                assert audience.handles() == {handle}
            told = server.log.read_text()
    assert writer.step_count > 0
    assert told.count("table is loaded") == 1
    assert "how=files beside the server" in told


def test_a_directory_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    lost = str(tmp_path / "lost")
    given = ["shape", "serve", "-b", "127.0.0.1:1", "--data", str(tmp_path / "shapes")]
    assert "does not exist" in run_varve(*given, "--broker-dir", lost, code=2).told
    assert not (tmp_path / "shapes").exists()


def test_of_debezium_the_whole_topic_is_read_for_the_latest_records_do_not_tell_all(
    tmp_path: Path,
) -> None:
    def put(id: int | None, operation: str, **after: Any) -> None:
        key = None if id is None else json.dumps({"id": id}).encode()
        value = {"op": operation, "after": {"id": id, **after} if after else None}
        topic.append(key=key, value=json.dumps(value).encode())

    data = tmp_path / "data"
    with varve.open(data, maintain=False) as store:
        topic = store.create_topic("db.items")
        put(1, "c", note="gone")
        put(None, "t")
        put(2, "c", note="large")
        put(2, "u", note=UNAVAILABLE, n=1)
        store.flush()
        with Serving(store) as serving:
            address = parse_cluster_address({"bootstrap.servers": serving.bootstrap})
            assert address is not None
            maker = make_feed_factory(
                address,
                {"db.items": TopicOptions(is_debezium=True)},
                str(tmp_path / "tables"),
                fs=RealFileSystem(),
                clock=SystemClock(),
                beside=[str(data)],
            )
            feed = maker.make("db.items")
            feed.open()
            with feed.view() as view:
                rows = [dict(row) for _, row in view.rows()]
            feed.close()
            maker.stop_waiting()
            maker.close()
    assert rows == [{"id": b"2", "note": b'"large"', "n": b"1"}]
