"""Limits and times of the shape API."""

from dataclasses import dataclass

from varve.foundation.settings import INT_MAX, check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """How long requests may take, and how many of them there may be."""

    long_poll_ms: int = setting(
        20_000,
        "How long a live request is held when nothing happens.",
        "shapes.http.long.poll.ms",
        at_least=1,
        at_most=3_600_000,
        is_own=True,
    )
    events_ms: int = setting(
        60_000,
        "How long a stream of events lasts; clients connect again.",
        "shapes.http.events.ms",
        at_least=1,
        at_most=86_400_000,
        is_own=True,
    )
    keep_alive_ms: int = setting(
        21_000,
        "After so long without an event a stream gets a comment.",
        "shapes.http.events.keep.alive.ms",
        at_least=1,
        at_most=86_400_000,
        is_own=True,
    )
    snapshot_wait_ms: int = setting(
        45_000,
        "How long a request waits for its shape to be made, and then for its snapshot to begin.",
        "shapes.http.snapshot.wait.ms",
        at_least=1,
        at_most=3_600_000,
        is_own=True,
    )
    max_age_s: int = setting(
        60,
        "How long caches may keep a response that is neither the first nor live.",
        "shapes.http.cache.max.age.seconds",
        at_least=0,
        is_own=True,
    )
    stale_age_s: int = setting(
        300,
        "How long they may go on with it while they ask again.",
        "shapes.http.cache.stale.age.seconds",
        at_least=0,
        is_own=True,
    )
    initial_requests_max: int = setting(
        300,
        "Requests without a known handle at a time, until the response begins; more get 503.",
        "shapes.http.max.initial.requests",
        at_least=1,
        is_own=True,
    )
    existing_requests_max: int = setting(
        20_000,
        "Requests with a known handle at a time, live ones among them; more get 503.",
        "shapes.http.max.existing.requests",
        at_least=1,
        is_own=True,
    )
    subsets_waiting_max: int = setting(
        250,
        "Subset requests that wait for a thread; more get 503.",
        "shapes.http.max.waiting.subsets",
        at_least=0,
        is_own=True,
    )
    connections_max: int = setting(
        40_000,
        "Open connections; further ones are closed at once.",
        "shapes.http.max.connections",
        at_least=1,
        is_own=True,
    )
    head_bytes_max: int = setting(
        131_072,
        "The first line and the headers of a request.",
        "shapes.http.max.request.head.bytes",
        at_least=1024,
        at_most=INT_MAX,
        is_own=True,
    )
    body_bytes_max: int = setting(
        262_144,
        "The body of a request.",
        "shapes.http.max.request.body.bytes",
        at_least=1,
        at_most=INT_MAX,
        is_own=True,
    )
    idle_ms: int = setting(
        75_000,
        "How long a connection may stay without a request, or send or take nothing in one.",
        "shapes.http.connection.idle.ms",
        at_least=1,
        at_most=3_600_000,
        is_own=True,
    )
    read_threads: int = setting(
        8,
        "Threads that read files for responses.",
        "shapes.http.read.threads",
        at_least=1,
        at_most=256,
        is_own=True,
    )
    admin_threads: int = setting(
        16,
        "Threads that make, compact and drop shapes.",
        "shapes.http.admin.threads",
        at_least=1,
        at_most=256,
        is_own=True,
    )
    snapshot_threads: int = setting(
        16,
        "Threads that follow snapshots while they are written.",
        "shapes.http.snapshot.threads",
        at_least=1,
        at_most=256,
        is_own=True,
    )
    subset_held_bytes: int = setting(
        512 << 20,
        "Subsets that are made and not taken by their clients; beyond it others get 503.",
        "shapes.http.max.subset.bytes",
        at_least=1,
        is_own=True,
    )
    subset_threads: int = setting(
        4,
        "Threads that query subsets.",
        "shapes.http.subset.threads",
        at_least=1,
        at_most=256,
        is_own=True,
    )
    shared_bytes: int = setting(
        32 << 20,
        "Answers kept in memory for clients that ask for the same.",
        "shapes.http.shared.response.bytes",
        at_least=0,
        at_most=INT_MAX,
        is_own=True,
    )
    shutdown_ms: int = setting(
        5_000,
        "How long requests in flight may take when the server stops.",
        "shapes.http.shutdown.timeout.ms",
        at_least=0,
        at_most=3_600_000,
        is_own=True,
    )

    def __post_init__(self) -> None:
        check_settings(self)
