"""What the endpoints have in common, made once for a loop."""

import asyncio
import random
from dataclasses import dataclass

from varve.foundation.clock import Clock
from varve.http.access import Access
from varve.http.engine_pool import EnginePool
from varve.http.gate import Gate
from varve.http.metrics import HttpMetrics
from varve.http.pieces import PieceReader
from varve.http.resolver import Resolver
from varve.http.settings import HttpSettings
from varve.http.waiters import Waiters
from varve.shapes.engine import ShapeEngine


@dataclass(frozen=True, slots=True)
class Services:
    """The engine, and the door's own parts around it."""

    engine: ShapeEngine
    settings: HttpSettings
    access: Access
    can_delete: bool
    clock: Clock
    draws: random.Random
    gate: Gate
    quick: EnginePool
    slow: EnginePool
    snapshot: EnginePool
    subset: EnginePool
    reader: PieceReader
    resolver: Resolver
    waiters: Waiters
    metrics: HttpMetrics

    @classmethod
    def make(
        cls,
        engine: ShapeEngine,
        settings: HttpSettings,
        access: Access,
        *,
        can_delete: bool,
        clock: Clock,
        draws: random.Random,
    ) -> "Services":
        """For the running loop; the engine's news reach it from now on."""
        quick = EnginePool("read", settings.read_threads)
        slow = EnginePool("slow", settings.slow_threads)
        snapshot = EnginePool("snapshot", settings.snapshot_threads)
        subset = EnginePool("subset", settings.subset_threads)
        waiters = Waiters(asyncio.get_running_loop())
        engine.subscribe(waiters.note)
        return cls(
            engine=engine,
            settings=settings,
            access=access,
            can_delete=can_delete,
            clock=clock,
            draws=draws,
            gate=Gate(settings),
            quick=quick,
            slow=slow,
            snapshot=snapshot,
            subset=subset,
            reader=PieceReader(quick, snapshot, settings.shared_bytes),
            resolver=Resolver(engine, access, quick, slow, settings.snapshot_wait_ms),
            waiters=waiters,
            metrics=HttpMetrics(),
        )

    def close(self) -> None:
        self.quick.close()
        self.slow.close()
        self.snapshot.close()
        self.subset.close()
