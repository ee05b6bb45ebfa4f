"""Retention as Kafka's documents tell it: one check after the other, deleting while it walks."""

from collections.abc import Callable
from dataclasses import dataclass

from varve.cleaning.retention.segments import SegmentList, SegmentTimes


@dataclass
class ModelSegment:
    base: int
    size: int
    age_from: int


Check = Callable[[ModelSegment, ModelSegment | None], bool]


class ModelLog:
    """A log that deletes as it walks: one check after the other, rolling when all would go."""

    def __init__(self, facts: SegmentList) -> None:
        self.facts = facts
        self.start = facts.log_start_offset
        self.deleted: list[int] = []
        self.segments = [
            ModelSegment(one.base_offset, one.size, self._age_from(one.times()))
            for one in facts.segments
        ]

    def _age_from(self, times: SegmentTimes) -> int:
        event, append = times.max_timestamp, times.last_append_ms
        settings = self.facts.settings
        if event < 0 or settings.retention_time == "append":
            return append
        if settings.retention_time == "bounded":
            is_future = event > append
            was_dead = settings.retention_ms >= 0 and append - event > settings.retention_ms
            if is_future or was_dead:
                return append
        return event

    def run(self, now_ms: int) -> list[int]:
        settings = self.facts.settings
        self._check(lambda one, following: following is not None and following.base <= self.start)
        if "delete" in settings.cleanup_policy:
            over = sum(one.size for one in self.segments) - settings.retention_bytes

            def is_too_much(one: ModelSegment, following: ModelSegment | None) -> bool:
                nonlocal over
                if settings.retention_bytes < 0 or over - one.size < 0:
                    return False
                over -= one.size
                return True

            self._check(is_too_much)
            self._check(
                lambda one, following: (
                    settings.retention_ms >= 0 and now_ms - one.age_from > settings.retention_ms
                )
            )
        return self.deleted

    def _check(self, is_deletable: Check) -> None:
        doomed = []
        for number, one in enumerate(self.segments):
            following = self.segments[number + 1] if number + 1 < len(self.segments) else None
            upper = following.base if following else self.facts.end_offset
            is_empty_active = following is None and one.size == 0
            if self.facts.high_watermark < upper or is_empty_active:
                break
            if not is_deletable(one, following):
                break
            doomed.append(one)
        if doomed and len(doomed) == len(self.segments):
            self.segments.append(ModelSegment(self.facts.end_offset, 0, 0))
        self.segments = self.segments[len(doomed) :]
        self.deleted += [one.base for one in doomed]
        self.start = max(self.start, self.segments[0].base)
