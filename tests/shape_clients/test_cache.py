"""Behind a cache that keeps all it may, clients still end with exactly the topic's state."""

import pytest

from tests.support.caching_proxy import CachingProxy
from tests.support.npm_clients import NpmClients
from tests.support.shape_server import ShapeServer
from tests.support.shape_topic import ShapeTopic
from tests.support.shape_traffic import Traffic

pytestmark = pytest.mark.node


def test_a_cache_answers_most_requests_and_none_wrongly(
    shape_server: ShapeServer, topic: ShapeTopic, npm: NpmClients
) -> None:
    traffic = Traffic(topic)
    traffic.add(100)
    table = {"table": topic.name}
    names = [f"{topic.name}-{number}" for number in range(30)]
    with CachingProxy(shape_server.port) as cache:
        npm.follow(*names[:10], url=cache.url, params=table)
        npm.wait(topic.rows(), *names[:10])
        traffic.change(50)
        npm.wait(topic.rows(), *names[:10])
        npm.follow(*names[10:20], url=cache.url, params=table)
        npm.wait(topic.rows(), *names[:20])
        handle = npm.facts(names[0])["handle"]
        traffic.change(200)
        shape_server.compact(handle)
        traffic.change(50)
        npm.wait(topic.rows(), *names[:20])
        assert cache.miss_count < cache.request_count / 3
        shape_server.rotate(handle)
        traffic.change(50)
        npm.follow(*names[20:], url=cache.url, params=table)
        npm.wait(topic.rows(), *names)
        traffic.change(50)
        npm.wait(topic.rows(), *names)
        assert handle not in {npm.facts(name)["handle"] for name in names}
        npm.leave(*names)
