"""Under any sequence of calls the epoch history equals a plain list of pairs."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.support.rounds import machine_settings
from varve.commit_log.leader_epochs import LeaderEpochs

EPOCHS = st.integers(0, 12)
OFFSETS = st.integers(0, 40)


class LeaderEpochsEqualList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.epochs = LeaderEpochs()
        self.model: list[tuple[int, int]] = []

    def _becomes(self, model: list[tuple[int, int]], is_changed: bool) -> None:
        assert is_changed is (model != self.model)
        self.model = model

    @rule(epoch=EPOCHS, start=OFFSETS)
    def assign(self, epoch: int, start: int) -> None:
        is_changed = self.epochs.assign(epoch, start)
        if self.model and self.model[-1][0] == epoch and self.model[-1][1] <= start:
            self._becomes(self.model, is_changed)
            return
        kept = [(e, s) for e, s in self.model if e < epoch and s < start]
        self._becomes([*kept, (epoch, start)], is_changed)

    @rule(offset=OFFSETS)
    def truncate_from_end(self, offset: int) -> None:
        kept = [(e, s) for e, s in self.model if s < offset]
        self._becomes(kept, self.epochs.truncate_from_end(offset))

    @rule(offset=OFFSETS)
    def truncate_from_start(self, offset: int) -> None:
        below = [(e, s) for e, s in self.model if s <= offset]
        above = [(e, s) for e, s in self.model if s > offset]
        first = [(below[-1][0], offset)] if below else []
        self._becomes(first + above, self.epochs.truncate_from_start(offset))

    @rule()
    def reopen(self) -> None:
        self.epochs = LeaderEpochs.decode(self.epochs.encode(), "x")

    @rule(epoch=st.integers(-1, 14), end=OFFSETS)
    def end_offset(self, epoch: int, end: int) -> None:
        known = dict(self.model)
        above = [s for e, s in self.model if e > epoch]
        below = [e for e, _ in self.model if e <= epoch]
        expected: tuple[int, int] | None
        if epoch < 0 or not known or (not above and epoch not in known):
            expected = None
        elif not above:
            expected = (epoch, end)
        else:
            expected = (below[-1] if below else epoch, above[0])
        assert self.epochs.end_offset_for(epoch, end) == expected

    @rule(offset=OFFSETS)
    def epoch_at(self, offset: int) -> None:
        below = [e for e, s in self.model if s <= offset]
        assert self.epochs.epoch_for_offset(offset) == (below[-1] if below else None)

    @invariant()
    def same_and_ascending(self) -> None:
        assert list(self.epochs.entries) == self.model
        for (epoch, start), (next_epoch, next_start) in zip(
            self.model, self.model[1:], strict=False
        ):
            assert epoch < next_epoch
            assert start < next_start


TestLeaderEpochsEqualList = LeaderEpochsEqualList.TestCase
TestLeaderEpochsEqualList.settings = machine_settings(40)
