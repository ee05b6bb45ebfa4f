"""The application: paths, and what stands behind each."""

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from varve.foundation.metrics import exposition
from varve.http import headers
from varve.http.answer import Answer, Refusal
from varve.http.door import Door
from varve.http.exchange import Exchange
from varve.http.openapi import make_document
from varve.http.services import Services
from varve.http.shape_admin import ShapeAdmin
from varve.http.shape_reads import ShapeReads
from varve.http.shape_request import parse_handle, parse_request
from varve.http.subset_reads import SubsetReads

SHAPE_PATH = "/v1/shape"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def make_app(services: Services) -> ASGIApp:
    """The shape API over an engine; for the loop that the services were made in."""
    shape = ShapeDoor(services)
    admin = ShapeAdmin(services)
    pages = Pages(services)
    shape_door = Door(
        "shape", services, {"GET": shape.get, "POST": shape.post, "DELETE": admin.delete}
    )
    routes = [
        ("/v1/shapes", "shapes", {"GET": admin.list}),
        ("/v1/shapes/{handle}", "shapes", {"GET": admin.show}),
        ("/v1/shapes/{handle}/compact", "compact", {"POST": admin.compact}),
        ("/v1/health", "health", {"GET": pages.health}),
        ("/metrics", "metrics", {"GET": pages.metrics}),
        ("/openapi.json", "openapi", {"GET": pages.openapi}),
        ("/", "root", {"GET": pages.root}),
    ]
    router = Router(
        [Route(path, Door(name, services, handlers)) for path, name, handlers in routes],
        default=Door("unknown", services, dict.fromkeys(("GET", "POST", "DELETE"), _not_found)),
        redirect_slashes=False,
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        # Nearly all requests are of this path, and finding a route takes a tenth of an answer.
        chosen = shape_door if scope.get("path") == SHAPE_PATH else router
        await chosen(scope, receive, send)

    return app


class ShapeDoor:
    """`/v1/shape`: regular and subset requests."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reads = ShapeReads(services)
        self._subsets = SubsetReads(services, self._reads)

    async def get(self, exchange: Exchange) -> Answer:
        return await self._answer(exchange, None)

    async def post(self, exchange: Exchange) -> Answer:
        settings = self._services.settings
        self._services.access.check(exchange, exchange.query())
        body = await exchange.read_body(settings.body_bytes_max, settings.idle_ms)
        return await self._answer(exchange, body)

    async def _answer(self, exchange: Exchange, body: bytes | None) -> Answer:
        services = self._services
        query = exchange.query()
        services.access.check(exchange, query)
        request = parse_request(query, body)
        handle = parse_handle(query)
        is_initial = handle is None or services.engine.find(handle) is None
        place = services.gate.enter(is_initial=is_initial)
        exchange.on_close(place.leave)
        if request.subset is not None:
            answer = await self._subsets.answer(exchange, request)
        else:
            answer = await self._reads.answer(exchange, request)
        place.found()
        return answer


class Pages:
    """What is there besides shapes."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._document = Answer.of_json(200, make_document(), *headers.NO_STORE)

    async def root(self, exchange: Exchange) -> Answer:
        return Answer(200, [*headers.NO_STORE])

    async def health(self, exchange: Exchange) -> Answer:
        status = self._services.engine.health().status
        return Answer.of_json(
            200 if status == "active" else 202, {"status": status}, *headers.NO_STORE
        )

    async def metrics(self, exchange: Exchange) -> Answer:
        services = self._services
        services.access.check_admin(exchange, exchange.query())
        services.metrics.note_state(
            services.gate.counts,
            services.gate.refused,
            waiting=services.waiters.count,
            shared=services.reader.shared_count,
        )
        text = await services.quick.run_in_engine(
            exposition, services.engine.metrics, services.metrics
        )
        return Answer.of_text(200, METRICS_TYPE, text)

    async def openapi(self, exchange: Exchange) -> Answer:
        return Answer(self._document.status, list(self._document.headers), self._document.body)


async def _not_found(exchange: Exchange) -> Answer:
    raise Refusal(404, {"message": f"there is nothing at {exchange.scope['path']:.200}"})
