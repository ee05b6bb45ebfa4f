"""Any sequence of commits that copying, compaction, expiry and a change of leader may make."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tests.support.metadata_bench import NOW_MS, make_id
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import ObjectPart, RemoteSegment, SegmentState

STARTED, FINISHED, DELETING = SegmentState
PARTS = ("log", "index", "timeindex", "txnindex", "snapshot", "epochs", "keys")

Change = Callable[[Manifest], Manifest]


@dataclass
class TierHistory:
    """Draws what happens next; `leader_epoch` and `now_ms` are those to commit with."""

    chance: random.Random
    leader_epoch: int = 0
    now_ms: int = NOW_MS
    made: int = 0

    def draw(self, segments: Sequence[RemoteSegment]) -> list[Change]:
        """The next commits, one behind the other, where the manifest lists these segments."""
        self.now_ms += self.chance.randrange(100_000)
        self.leader_epoch += self.chance.random() < 0.1
        steps = [self._announce, self._announce, self._finish, self._finish, self._count]
        steps += [self._merge, self._delete, self._forget, self._raise_offsets]
        return self.chance.choice(steps)(segments)

    def _announce(self, segments: Sequence[RemoteSegment]) -> list[Change]:
        offset = max((one.end_offset + 1 for one in segments), default=0)
        new = []
        for _ in range(self.chance.randint(1, 3)):
            new.append(self._make(offset, offset + self.chance.randint(0, 200)))
            offset = new[-1].end_offset + 1
        return [_update(new)]

    def _finish(self, segments: Sequence[RemoteSegment]) -> list[Change]:
        readable = [one for one in segments if one.is_readable]
        started = [
            one
            for one in segments
            if one.state is STARTED and not any(_overlap(one, other) for other in readable)
        ]
        some = self._some(started)
        return [_update(replace(one, state=FINISHED, at_ms=self.now_ms) for one in some)]

    def _count(self, segments: Sequence[RemoteSegment]) -> list[Change]:
        some = self._some([one for one in segments if one.is_readable])
        return [_update(replace(one, stale_bytes=self.chance.randrange(999)) for one in some)]

    def _merge(self, segments: Sequence[RemoteSegment]) -> list[Change]:
        """Neighbours are rewritten: as one segment, or as two with another border."""
        readable = [one for one in segments if one.is_readable]
        first = self.chance.randrange(len(readable) + 1)
        old = readable[first : first + self.chance.randint(1, 3)]
        if not old or any(a.end_offset + 1 != b.base_offset for a, b in pairwise(old)):
            return []
        start, end = old[0].base_offset, old[-1].end_offset
        middle = self.chance.randint(start, end)
        new = [self._make(start, end)]
        if middle < end and self.chance.random() < 0.5:
            new = [self._make(start, middle), self._make(middle + 1, end)]
        until_ms = self.now_ms + 86_400_000
        gone = [
            replace(one, state=DELETING, at_ms=self.now_ms, replaced_until_ms=until_ms)
            for one in old
        ]
        swap = _update([*gone, *(replace(one, state=FINISHED) for one in new)])
        return [_update(new), lambda manifest: swap(manifest).raise_cleaned_up_to(end + 1)]

    def _delete(self, segments: Sequence[RemoteSegment]) -> list[Change]:
        some = self._some([one for one in segments if one.state is not DELETING])
        return [_update(replace(one, state=DELETING, at_ms=self.now_ms) for one in some)]

    def _forget(self, segments: Sequence[RemoteSegment]) -> list[Change]:
        ids = [one.id for one in self._some([one for one in segments if one.state is DELETING])]
        return [lambda manifest: manifest.forget(ids)]

    def _raise_offsets(self, segments: Sequence[RemoteSegment]) -> list[Change]:
        start = self.chance.randrange(500)
        return [lambda manifest: manifest.raise_log_start(start).raise_cleaned_up_to(start // 2)]

    def _some(self, segments: Sequence[RemoteSegment]) -> list[RemoteSegment]:
        count = min(len(segments), self.chance.randint(1, 3))
        return self.chance.sample(segments, count)

    def _make(self, start: int, end: int) -> RemoteSegment:
        """In half of the cases the leader changed within it."""
        self.made += 1
        chance = self.chance
        middle = chance.randint(start, end)
        epochs: tuple[tuple[int, int], ...] = ((self.leader_epoch, start),)
        if middle > start and chance.random() < 0.5:
            self.leader_epoch += 1
            epochs = (*epochs, (self.leader_epoch, middle))
        names = [name for name in PARTS if name == "log" or chance.random() < 0.8]
        size = chance.randrange(1, 1 << 30)
        return RemoteSegment(
            id=make_id(f"{self.now_ms}-{self.made}"),
            base_offset=start,
            end_offset=end,
            size=size,
            record_count=chance.randint(0, end - start + 1),
            max_timestamp=chance.choice([-1, self.now_ms, self.now_ms - 10**9]),
            append_ms=(self.now_ms - chance.randrange(10**9), self.now_ms),
            epochs=epochs,
            parts=tuple(
                ObjectPart(name, size if name == "log" else chance.randrange(1 << 22), made)
                for name, made in zip(names, chance.sample(range(1 << 32), len(names)), strict=True)
            ),
            has_aborted="txnindex" in names,
            state=STARTED,
            at_ms=self.now_ms,
            key_count=chance.choice([None, 0, 10**6]),
            delete_horizon_ms=chance.choice([None, self.now_ms + 10**8]),
            undecided_from=chance.choice([None, start]),
        )


def _overlap(one: RemoteSegment, other: RemoteSegment) -> bool:
    return one.base_offset <= other.end_offset and other.base_offset <= one.end_offset


def _update(segments: Iterable[RemoteSegment]) -> Change:
    listed = list(segments)

    def change(manifest: Manifest) -> Manifest:
        for segment in listed:
            manifest = manifest.update(segment)
        return manifest

    return change
