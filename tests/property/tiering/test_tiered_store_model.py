"""A store in two tiers equals a plain list, whatever happens to it, in whatever order: G1, G3, G5.

Appends of all kinds, rolls, copies, expiry, local and total retention, deleted records, cut logs,
altered topics, compaction, crashes at any step of disk or object store, requests that fail, are
repeated or lost, a second writer of the manifest, a lost checkpoint. A failing sequence is told by
its seed.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.support.rounds import IS_LONG
from tests.support.tiered_store_bench import Fault, TieredStore
from varve.testing import FaultKind
from varve.testing.faulty_disk import CrashMode


@dataclass(frozen=True, slots=True)
class Step:
    """A call of the bench by name, with what goes wrong meanwhile.

    It says all there is to know, so that a sequence can be played again, or without some of it.
    """

    name: str
    args: Mapping[str, Any]
    fault: Fault | None = None
    mode: CrashMode = CrashMode.KEEP_ALL
    seconds: int = 0
    """How much time passes first."""

    def carry_out(self, bench: TieredStore) -> None:
        if self.seconds:
            bench.kit.advance(seconds=self.seconds)
        with bench.step(self.fault, self.mode):
            getattr(bench, self.name)(**self.args)


Draw = Callable[[random.Random], dict[str, Any]]

_KINDS: Final = [
    None,
    FaultKind.CRASH_BEFORE,
    FaultKind.CRASH_AFTER,
    FaultKind.ERROR_BEFORE,
    FaultKind.ERROR_AFTER,
    FaultKind.REPEATED,
    FaultKind.THROTTLED,
    FaultKind.PARTIAL,
]
_SHARES: Final = [0.0, 0.2, 0.5, 0.8, 1.0]


def _keys(source: random.Random) -> list[int]:
    return [source.randint(-3, 6) for _ in range(source.randint(1, 4))]


def _append(source: random.Random) -> dict[str, Any]:
    return {
        "batches": [_keys(source) for _ in range(source.choice([1, 1, 4, 10]))],
        "producer_id": source.choice([-1, -1, 1, 2, 3]),
        "transactional": source.random() < 0.4,
        "new_epoch": source.random() < 0.1,
        "age_ms": source.choice([0, 0, 500]),
    }


def _limits(source: random.Random) -> dict[str, Any]:
    return {
        "changes": {
            "cleanup.policy": source.choice(["delete", "delete", "compact", "compact,delete"]),
            "retention.bytes": source.choice([-1, 1_500, 4_000]),
            "retention.ms": source.choice([-1, 60_000, 3_600_000]),
        },
        "local_ms": source.choice([0, 1_000, 30_000]),
    }


def _copying(source: random.Random) -> dict[str, Any]:
    disables = source.random() < 0.5
    local_ms = -2 if disables else source.choice([0, 1_000, 30_000])
    changes = {"remote.log.copy.disable": disables, "local.retention.ms": local_ms}
    return {"changes": changes}


def _membership(source: random.Random) -> dict[str, Any]:
    if source.random() < 0.6:
        return {"changes": {"remote.storage.enable": True}}
    return {"changes": {"remote.storage.enable": False, "remote.log.delete.on.disable": True}}


def _nothing(source: random.Random) -> dict[str, Any]:
    return {}


def _share(source: random.Random) -> dict[str, Any]:
    return {"share": source.choice(_SHARES)}


# How often, which call, with what, and where it may be broken off.
STEPS: Final[Sequence[tuple[int, str, Draw, str]]] = (
    (10, "append_all", _append, "disk"),
    (2, "repeat", lambda source: {"producer_id": source.randint(1, 3)}, ""),
    (
        5,
        "end_transaction",
        lambda source: {
            "producer_id": source.randint(1, 3),
            "committed": source.random() < 0.5,
        },
        "disk",
    ),
    (3, "roll", _nothing, "disk"),
    (1, "flush", _nothing, "disk"),
    (8, "run_once", _nothing, "both"),
    (5, "copy", _nothing, "both"),
    (4, "expire", _nothing, "both"),
    (2, "clean", _nothing, "both"),
    (2, "delete_records", _share, "disk"),
    (1, "truncate", _share, ""),
    (1, "diverge", _share, ""),
    (2, "alter", _limits, ""),
    (1, "alter", _copying, ""),
    (1, "alter", _membership, "both"),
    (2, "crash", lambda source: {"mode": source.choice(list(CrashMode))}, ""),
    (1, "reopen", _nothing, ""),
    (1, "lose_log_start", _nothing, ""),
    (1, "set_down", lambda source: {"is_down": source.random() < 0.5}, ""),
    (1, "meet_writer", _nothing, ""),
)


def draw_step(source: random.Random) -> Step:
    """The next thing to happen."""
    weights = [weight for weight, _, _, _ in STEPS]
    ((_, name, draw, breakable),) = source.choices(STEPS, weights)
    passes = name in ("run_once", "expire", "clean")
    return Step(
        name,
        draw(source),
        _draw_fault(source, breakable),
        source.choice(list(CrashMode)),
        source.choice([0, 1, 5, 40, 700, 4_000]) if passes else 0,
    )


def _draw_fault(source: random.Random, breakable: str) -> Fault | None:
    if not breakable or source.random() < 0.6:
        return None
    if breakable == "disk" or source.random() < 0.4:
        return Fault("disk", source.randint(1, 12 if breakable == "disk" else 60))
    return Fault("objects", source.randint(1, 40), source.choice(_KINDS))


def draw_settings(source: random.Random) -> dict[str, str | int | float | bool]:
    """What the topic begins with."""
    return {
        "cleanup.policy": source.choice(["delete", "delete", "compact", "compact,delete"]),
        "retention.bytes": source.choice([-1, -1, 1_500, 4_000]),
        "local.retention.ms": source.choice([0, 1_000, 30_000]),
        "flush": source.choice(["interval", "interval", "ack"]),
    }


def play(steps: Sequence[Step], bench: TieredStore) -> None:
    """Carries steps out, and compares all that readers see after each of them."""
    for step in steps:
        step.carry_out(bench)
        bench.check([0.1, 0.7])
    bench.settle()
    bench.kit.close()


@pytest.mark.parametrize("seed", range(2_000 if IS_LONG else 16))
def test_readers_see_what_the_list_holds(seed: int) -> None:
    source = random.Random(seed)
    settings = draw_settings(source)
    steps = [draw_step(source) for _ in range(80 if IS_LONG else 40)]
    play(steps, TieredStore(settings, seed=seed))
