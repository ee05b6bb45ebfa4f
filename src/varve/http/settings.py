"""Limits and times of the shape API."""

from dataclasses import dataclass
from typing import ClassVar

from varve.foundation.settings import INT_MAX, check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """How long requests may take, and how many of them there may be."""

    setting_prefix: ClassVar = "shapes.http."
    is_own: ClassVar = True

    long_poll_ms: int = setting(
        20_000,
        "How long a live request waits for changes.",
        at_least=1,
        at_most=3_600_000,
    )
    events_ms: int = setting(
        60_000,
        "How long a stream of events lasts; clients connect again.",
        at_least=1,
        at_most=86_400_000,
    )
    keep_alive_ms: int = setting(
        21_000,
        "How long a stream may have no event before it gets a comment.",
        kafka_name="shapes.http.events.keep.alive.ms",
        at_least=1,
        at_most=86_400_000,
    )
    snapshot_wait_ms: int = setting(
        45_000,
        "How long a request waits for its shape to be created, and then for its snapshot to begin.",
        at_least=1,
        at_most=3_600_000,
    )
    max_age_s: int = setting(
        60,
        "How long caches may keep a response that is neither the first nor live.",
        kafka_name="shapes.http.cache.max.age.seconds",
        at_least=0,
    )
    stale_age_s: int = setting(
        300,
        "How long caches may serve it while they revalidate it.",
        kafka_name="shapes.http.cache.stale.age.seconds",
        at_least=0,
    )
    initial_requests_max: int = setting(
        300,
        "Requests without a known handle at a time, until the response begins; more get 503.",
        kafka_name="shapes.http.max.initial.requests",
        at_least=1,
    )
    existing_requests_max: int = setting(
        20_000,
        "Requests with a known handle at a time, live ones among them; more get 503.",
        kafka_name="shapes.http.max.existing.requests",
        at_least=1,
    )
    subsets_waiting_max: int = setting(
        250,
        "Subset requests that wait for a thread; more get 503.",
        kafka_name="shapes.http.max.waiting.subsets",
        at_least=0,
    )
    connections_max: int = setting(
        40_000,
        "Open connections; further ones are closed at once.",
        kafka_name="shapes.http.max.connections",
        at_least=1,
    )
    head_bytes_max: int = setting(
        131_072,
        "The first line and the headers of a request.",
        kafka_name="shapes.http.max.request.head.bytes",
        at_least=1024,
        at_most=INT_MAX,
    )
    body_bytes_max: int = setting(
        262_144,
        "The body of a request.",
        kafka_name="shapes.http.max.request.body.bytes",
        at_least=1,
        at_most=INT_MAX,
    )
    idle_ms: int = setting(
        75_000,
        "How long a connection may stay without a request, or send or take nothing in one.",
        kafka_name="shapes.http.connection.idle.ms",
        at_least=1,
        at_most=3_600_000,
    )
    read_threads: int = setting(
        8, "Threads that read files for responses.", at_least=1, at_most=256
    )
    parse_threads: int = setting(
        2, "Threads that parse filters of new definitions.", at_least=1, at_most=256
    )
    admin_threads: int = setting(
        16, "Threads that create, compact and drop shapes.", at_least=1, at_most=256
    )
    snapshot_threads: int = setting(
        16, "Threads that follow snapshots while they are written.", at_least=1, at_most=256
    )
    subset_held_bytes: int = setting(
        512 << 20,
        "Subsets that wait for their clients to read them; beyond it others get 503.",
        kafka_name="shapes.http.max.subset.bytes",
        at_least=1,
    )
    subset_threads: int = setting(4, "Threads that query subsets.", at_least=1, at_most=256)
    shared_bytes: int = setting(
        32 << 20,
        "Responses cached in memory for clients with equal requests.",
        kafka_name="shapes.http.shared.response.bytes",
        at_least=0,
        at_most=INT_MAX,
    )
    shutdown_ms: int = setting(
        5_000,
        "How long requests in flight may take when the server stops.",
        kafka_name="shapes.http.shutdown.timeout.ms",
        at_least=0,
        at_most=3_600_000,
    )

    allowed_origins: tuple[str, ...] = setting(
        (),
        "Origins, such as http://localhost:5173, whose pages may use a server without a token; * "
        "allows all. A server with a token serves all.",
    )

    def __post_init__(self) -> None:
        check_settings(self)
