"""A topic that takes no duplicates, whose broker crashes again and again.

What was acknowledged is in the log, or the record that it is a copy of, and nothing is in the log
twice within the window. After a power cut a topic that is not synced may have lost what it
acknowledged before; what it acknowledges afterwards it has, even if it acknowledged it before.
"""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.broker_kit import BrokerKit
from tests.support.data_requests import produce
from tests.support.dedup_topic import TOPIC, batch_of, make_topic, records_in
from tests.support.log_bench import NOW_MS
from varve.commit_log import Log
from varve.disk import PowerLoss
from varve.foundation.clock import ManualClock
from varve.testing.faulty_disk import CrashMode, FaultyFileSystem

WINDOW_MS, LATENESS_MS = 100_000, 250_000
SETTINGS = {
    "varve.dedup.by": "key",
    "varve.dedup.window.ms": str(WINDOW_MS),
    "varve.dedup.lateness.ms": str(LATENESS_MS),
    "segment.bytes": "2000",
}
ROUNDS, BATCHES, STEPS = 4, 14, 160
KEYS = [*"abcdefgh", "a key that is longer than sixteen bytes"]
PRODUCER = 5

Sent = tuple[str, int]


@dataclass
class Client:
    """Sends batches, and again what was not answered; remembers what was."""

    source: random.Random
    answered: list[tuple[int, list[Sent]]] = field(default_factory=list)
    unanswered: list[Sent] = field(default_factory=list)
    sequence: int = 0
    epoch: int = 0

    def send(self, kit: BrokerKit) -> None:
        now_ms = kit.clock.now_ms() - NOW_MS
        sent = self.unanswered or [
            (self.source.choice(KEYS), now_ms + self.source.randint(-LATENESS_MS, WINDOW_MS))
            for _ in range(self.source.randint(1, 5))
        ]
        self.unanswered = sent
        self.deliver(kit, sent)
        self.unanswered = []

    def deliver(self, kit: BrokerKit, sent: list[Sent]) -> None:
        fields: dict[str, Any] = {}
        if self.source.random() < 0.5:
            fields = {
                "producer_id": PRODUCER,
                "producer_epoch": self.epoch,
                "base_sequence": self.sequence,
            }
        found = produce(kit, TOPIC, batch_of(*sent, **fields))
        assert found.error_code == 0, found.error_message
        self.answered.append((found.base_offset, sent))
        if fields:
            self.sequence += len(sent)

    def begin_anew(self) -> None:
        """As a producer that does not know what became of its last batch, nor cares."""
        self.epoch, self.sequence = self.epoch + 1, 0


def pass_time(kit: BrokerKit, milliseconds: int) -> None:
    """In one step; at the end of a minute ids are brought to the disk."""
    kit.clock.advance(milliseconds)
    kit.timers.run_due()
    kit.settle()


def check_unique(log: Log) -> None:
    """Nothing is there twice, of all that was surely not late when it came."""
    stream_time = -(1 << 60)
    seen: dict[str, list[int]] = {}
    for offset, key, time in records_in(log):
        is_compared = time >= stream_time + WINDOW_MS - LATENESS_MS
        near = [one for one in seen.get(key, []) if abs(one - time) <= WINDOW_MS]
        assert not (is_compared and near), f"{key} is there at {near} and again at {offset}"
        if is_compared:
            seen.setdefault(key, []).append(time)
        stream_time = max(stream_time, time)


def check_kept(log: Log, answered: list[tuple[int, list[Sent]]]) -> None:
    """All of it is there: itself, or one of its key within the window."""
    found = records_in(log)
    for base_offset, sent in answered:
        for key, time in sent:
            near = [at for at, had, when in found if had == key and abs(when - time) <= WINDOW_MS]
            assert near, f"{key} at {time} was acknowledged and is not there"
        key, time = sent[0]
        original = [one for one in found if one[0] == base_offset]
        if original:
            assert original[0][1] == key, "a batch was told an offset of another key"
            assert abs(original[0][2] - time) <= WINDOW_MS


@pytest.mark.parametrize(
    ("flush", "mode"),
    [
        ("ack", CrashMode.LOSE_UNSYNCED),
        ("ack", CrashMode.RANDOM),
        ("interval", CrashMode.KEEP_ALL),
        ("interval", CrashMode.LOSE_UNSYNCED),
        ("interval", CrashMode.RANDOM),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_neither_lost_nor_twice_however_the_broker_ends(
    flush: str, mode: CrashMode, seed: int, rounds_factor: int
) -> None:
    source = random.Random(f"{flush} {mode} {seed}")
    clock = ManualClock()
    fs = FaultyFileSystem(clock, seed=seed)
    client = Client(source)
    has_power = mode is CrashMode.KEEP_ALL
    is_lossy = flush == "interval" and not has_power
    with BrokerKit(fs=fs, clock=clock, boot_id="0") as kit:
        make_topic(kit, {**SETTINGS, "flush": flush})
        for round in range(1, ROUNDS * rounds_factor + 1):
            fs.crash_at(fs.steps + source.randint(1, STEPS))
            try:
                for _ in range(BATCHES):
                    client.send(kit)
                    pass_time(kit, source.choice([0, 100, 61_000]))
            except PowerLoss:
                pass
            fs = fs.after_crash(mode, seed=round)
            kit.fs = fs
            kit.set_part(boot_id="0" if has_power else str(round))
            kit.restart(is_crash=True)
            client.begin_anew()
            again = client.answered[-6:]
            if is_lossy:
                client.answered.clear()
            for _, sent in again:
                client.deliver(kit, sent)
            log = kit.log(TOPIC)
            check_kept(log, client.answered)
            check_unique(log)
