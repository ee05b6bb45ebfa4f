"""Shapes behind nginx as a shared cache: few requests reach the server, all clients are right."""

from collections import defaultdict
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.conformance.tools.nginx_cache import NginxCache, Served, count_outcomes, find_nginx
from tests.conformance.tools.program import pause
from tests.support.kafka_server import ServerProcess
from tests.support.npm_clients import NpmClients
from tests.support.shape_audience import Audience
from tests.support.shape_server import ShapeServer
from tests.support.shape_topic import Row, ShapeTopic
from tests.support.shape_traffic import Traffic

pytestmark = [pytest.mark.nginx, pytest.mark.timeout(240)]

CROWD: Final = 25
"""Clients of each kind that follow the same shape."""
WHERE: Final = "state = 'moving'"
AGE_SECONDS: Final = 2.5
"""Makes an answer of one second too old, for nginx counts whole seconds."""


@pytest.fixture(scope="module")
def nginx() -> str:
    found = find_nginx()
    if found is None:
        pytest.skip("shapes are not served through a cache: there is no nginx (apt: nginx-light)")
    return found


def _is_moving(row: Row) -> bool:
    return bool(row["state"] == "moving")


def _live(served: list[Served]) -> dict[str, list[Served]]:
    """Long polls by their address."""
    found: dict[str, list[Served]] = defaultdict(list)
    for one in served:
        if "live=true" in one.target and "live_sse" not in one.target:
            found[one.target].append(one)
    return found


def test_a_crowd_costs_the_server_what_one_client_does(
    nginx: str, broker: ServerProcess, npm: NpmClients, name: str, tmp_path: Path
) -> None:
    topic = ShapeTopic(broker.bootstrap, name)
    traffic = Traffic(topic)
    traffic.add(200)
    asked = {"table": name}
    with (
        ShapeServer(broker.bootstrap, tmp_path) as server,
        NginxCache(nginx, tmp_path / "nginx", server.port) as cache,
        Audience(cache.host, cache.port, npm) as audience,
    ):
        for wanted, rows in (
            (asked, topic.rows),
            ({**asked, "where": WHERE}, lambda: topic.rows(_is_moving)),
        ):
            audience.join(wanted, rows, light_count=CROWD, npm_count=CROWD, modes=[False])
            audience.join(wanted, rows, modes=[True])
        audience.settle()
        for _ in range(5):
            traffic.change(40)
            audience.settle()
        before = cache.served()
        handle = server.ask_handle(**asked)
        traffic.change(300)
        assert server.compact(handle)["outcome"] == "done"
        traffic.change(40)
        audience.join(asked, topic.rows, light_count=5, npm_count=5)
        audience.settle()
        server.rotate(handle)
        traffic.change(40)
        audience.join(asked, topic.rows, light_count=5, npm_count=5)
        audience.settle()
        traffic.change(40)
        audience.settle()
        assert audience.errors() == []
        assert handle not in audience.handles()
        assert len(audience.handles()) == 2

        served = cache.served()
        outcomes = count_outcomes(served)
        print(f"{audience.client_count} clients, {len(served)} requests: {dict(outcomes)}")
        live = _live(served)
        assert max(len(each) for each in live.values()) >= CROWD
        missed = {at: sum(one.outcome == "MISS" for one in each) for at, each in live.items()}
        assert max(missed.values()) == 1, "requests for the same wait for one answer"
        first = [one for one in before if "live_sse" not in one.target]
        assert sum(one.is_asked for one in first) < len(first) / 10
        assert {one.status for one in served} <= {200, 409, 503}
        assert cache.complaints() == ""


def test_what_is_too_old_is_asked_for_again_by_its_etag(
    nginx: str, broker: ServerProcess, name: str, tmp_path: Path
) -> None:
    topic = ShapeTopic(broker.bootstrap, name)
    traffic = Traffic(topic)
    traffic.add(20)
    ages = ("shapes.http.cache.max.age.seconds=1", "shapes.http.cache.stale.age.seconds=0")
    options = [word for one in ages for word in ("--set", one)]
    with (
        ShapeServer(broker.bootstrap, tmp_path, *options) as server,
        NginxCache(nginx, tmp_path / "nginx", server.port) as cache,
        httpx.Client() as client,
    ):
        handle = server.ask_handle(table=name)
        place = {"table": name, "offset": "0_0", "handle": handle}

        def ask() -> tuple[str, httpx.Response]:
            answer = client.get(cache.url, params=place)
            assert answer.status_code == 200, answer.text
            return answer.headers["x-cache"], answer

        assert ask()[0] == "MISS"
        outcome, kept = ask()
        assert outcome == "HIT"
        pause(AGE_SECONDS)
        outcome, again = ask()
        assert outcome == "REVALIDATED"
        assert cache.served()[-1].behind == "304"
        assert again.content == kept.content
        for header in ("electric-handle", "electric-offset", "electric-up-to-date", "etag"):
            assert again.headers[header] == kept.headers[header]
        traffic.change(20)
        pause(AGE_SECONDS)
        outcome, fresh = ask()
        assert outcome == "EXPIRED"
        assert fresh.headers["etag"] != kept.headers["etag"]
        assert len(fresh.json()) > 1
        server.rotate(handle)
        pause(AGE_SECONDS)
        assert client.get(cache.url, params=place).status_code == 409


def test_what_a_token_opened_is_not_given_to_others(
    nginx: str, broker: ServerProcess, name: str, tmp_path: Path
) -> None:
    Traffic(ShapeTopic(broker.bootstrap, name)).add(20)
    with (
        ShapeServer(broker.bootstrap, tmp_path, "--token", "t0k") as server,
        NginxCache(nginx, tmp_path / "nginx", server.port) as cache,
        httpx.Client(params={"table": name, "offset": "-1"}, timeout=60) as client,
    ):
        token = {"authorization": "Bearer t0k"}
        assert client.get(cache.url, headers=token).status_code == 200
        again = client.get(cache.url, headers=token)
        assert again.headers["x-cache"] == "HIT"
        assert client.get(cache.url).status_code == 401
        assert client.get(cache.url, headers={"authorization": "Bearer other"}).status_code == 401
        assert client.get(cache.url, headers=token).headers["x-cache"] == "HIT"


def test_events_are_for_one_client_each_however_they_are_asked_for(
    nginx: str, broker: ServerProcess, name: str, tmp_path: Path
) -> None:
    Traffic(ShapeTopic(broker.bootstrap, name)).add(20)
    with (
        ShapeServer(broker.bootstrap, tmp_path, "--set", "shapes.http.events.ms=500") as server,
        NginxCache(nginx, tmp_path / "nginx", server.port) as cache,
        httpx.Client(timeout=60) as client,
    ):
        place = {"table": name, "offset": "0_0", "handle": server.ask_handle(table=name)}
        for asked in ("live_sse=true", "live_sse=1", "experimental_live_sse=true"):
            for _ in range(2):
                parameter, _, value = asked.partition("=")
                answer = client.get(cache.url, params={**place, "live": "true", parameter: value})
                assert answer.headers["content-type"] == "text/event-stream", asked
                assert "x-cache" not in answer.headers, asked
