"""examples/shapes in a real browser: the page shows exactly the topic's state, and stays live."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from examples.shapes.live_table import TOPIC, Courier, LiveTable, Page
from tests.support.chromium import Chromium
from tests.support.kafka_server import ServerProcess
from tests.support.shape_server import ShapeServer
from tests.support.shape_topic import ShapeTopic

pytestmark = pytest.mark.browser

_CELLS = (
    "[...document.querySelectorAll('tbody tr')].map(r => [...r.children].map(c => c.innerText))"
)


@pytest.fixture(scope="module")
def table() -> Iterator[LiveTable]:
    with LiveTable() as served:
        yield served


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Chromium]:
    with Chromium(tmp_path) as browser:
        yield browser


def _shows(parcels: Mapping[str, Mapping[str, object]]) -> str:
    """True in a page that is live and has exactly these parcels, by their numbers."""
    names = sorted(parcels, key=lambda name: int(name.split()[1]))
    columns = ("state", "town", "grams", "scans")
    cells = [[name, *(str(parcels[name][one]) for one in columns)] for name in names]
    return (
        "document.getElementById('status').innerText === 'live' && "
        f"JSON.stringify({_CELLS}) === JSON.stringify({json.dumps(cells, ensure_ascii=False)})"
    )


@pytest.mark.parametrize("live", ["sse", "poll"])
def test_the_page_shows_the_topic_while_producers_write(
    table: LiveTable, page: Chromium, live: str
) -> None:
    couriers = [Courier(table.bootstrap, rest=rest, step=2) for rest in range(2)]
    page.open(f"{table.page_url}&live={live}")
    for _ in range(3):
        for _ in range(100):
            for courier in couriers:
                courier.change()
        for courier in couriers:
            courier.flush()
        parcels = {**couriers[0].parcels, **couriers[1].parcels}
        page.wait(_shows(parcels))
    page.evaluate("[...document.querySelectorAll('nav button')][2].click()")
    page.wait(_shows({key: one for key, one in parcels.items() if one["state"] == "moving"}))
    assert page.troubles == []
    for courier in couriers:
        courier.clear()
    page.wait(_shows({}))


def test_the_page_tells_that_the_server_is_away_and_catches_up(
    broker: ServerProcess, mortal_server: ShapeServer, page: Chromium
) -> None:
    ShapeTopic(broker.bootstrap, TOPIC)
    courier = Courier(broker.bootstrap)
    with Page() as served:
        page.open(f"http://{served.address}/?shapes={mortal_server.url}")
        for _ in range(50):
            courier.change()
        courier.flush()
        page.wait(_shows(courier.parcels))
        mortal_server.kill()
        page.wait("document.getElementById('status').innerText === 'connecting'")
        for _ in range(50):
            courier.change()
        courier.flush()
        mortal_server.start()
        page.wait(_shows(courier.parcels))
