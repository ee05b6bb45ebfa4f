"""The rules of docs/how-to/deduplicate-with-spark.md, record by record."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from varve.dedup.rules import Verdict


@dataclass(frozen=True, slots=True)
class Arrival:
    """A record; `time` None where it has none."""

    partition: int
    offset: int
    id: bytes | None
    time: int | None


@dataclass
class DedupModel:
    """Remembers everything for ever; only the watermark moves from batch to batch."""

    before: int
    after: int
    lateness: int
    refresh: bool = False
    max_future: int = 3_600_000
    watermark: int = 0
    seen: dict[bytes, list[int]] = field(default_factory=dict)

    def batch(self, arrivals: Sequence[Arrival], now: int) -> dict[tuple[int, int], Verdict]:
        """What each record is, by partition and offset."""
        found = {}
        for one in sorted(arrivals, key=lambda one: (one.partition, one.offset)):
            found[one.partition, one.offset] = self._judge(one, now)
        times = [
            one.time
            for one in arrivals
            if one.time is not None and one.time <= now + self.max_future
        ]
        self.watermark = max(self.watermark, max(times, default=0) - self.lateness)
        return found

    def _judge(self, one: Arrival, now: int) -> Verdict:
        if one.id is None:
            return Verdict.NO_ID
        if one.time is None or one.time < self.watermark:
            return Verdict.LATE
        if one.time > now + self.max_future:
            return Verdict.FUTURE
        times = self.seen.setdefault(one.id, [])
        is_duplicate = any(one.time - self.before <= t <= one.time + self.after for t in times)
        if not is_duplicate or self.refresh:
            times.append(one.time)
        return Verdict.DUPLICATE if is_duplicate else Verdict.KEPT
