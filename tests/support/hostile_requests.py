"""Requests that nobody should send: well formed ones with values that meet, and mutants of them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final
from uuid import UUID

from tests.support.random_messages import MessageMaker
from varve.records import Codec, Record, build_batch
from varve.wire import APIS, Api, ApiKey, encode, write_request_header
from varve.wire.schema import FieldType, Kind

LENGTH: Final = Struct(">i")
_MUTANT_SHARE: Final = 0.7
_SMALL: Final = (-2, -1, 0, 0, 0, 1, 1, 2, 3)
_WORDS: Final = ("", "consumer", "range", "member", "cleanup.policy", "compact", "1", "uniform")
_WAITS: Final = ("wait_ms", "timeout_ms")
_COUNTS: Final = ("num_partitions", "count")
_ASKED_FOR: Final = (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS)
"""Mutants of these may ask for thousands of partitions, and rightly get them."""
_EDGES: Final = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\x00\x00\x00")


@dataclass(frozen=True, slots=True)
class Frame:
    """A request as it is sent, with what its header said before it was changed."""

    api: Api
    version: int
    correlation_id: int
    data: bytes
    is_mutant: bool


class NearMaker(MessageMaker):
    """Random messages that name things that are there, so that they reach the work itself."""

    def __init__(self, seed: int, names: Sequence[str], ids: Sequence[UUID]) -> None:
        super().__init__(seed)
        self._names = (*names, *names, *_WORDS)
        self._ids = ids
        self._batches = _make_batches()

    def _value(self, type: FieldType, name: str, version: int) -> Any:
        chance, kind = self._random, type.kind
        if name.endswith(_WAITS):
            return chance.choice((0, 1, 5, 6_000, -1))
        if name in _COUNTS:
            return chance.choice((-2, -1, 0, 1, 2, 3, 10_001, 1 << 30))
        if chance.random() < 0.2 or kind in (Kind.STRUCT, Kind.ARRAY):
            return super()._value(type, name, version)
        if kind in (Kind.INT8, Kind.INT16, Kind.INT32, Kind.INT64):
            return chance.choice(_SMALL)
        if kind is Kind.STRING:
            return chance.choice(self._names)
        if kind is Kind.UUID and self._ids:
            return chance.choice(self._ids)
        if kind is Kind.RECORDS:
            return bytearray(chance.choice(self._batches))
        return super()._value(type, name, version)


def _make_batches() -> list[bytes]:
    records = [Record(b"key", b"value"), Record(None, b"x" * 200), Record(b"gone", None)]
    made = [bytes(build_batch(records, codec=codec)) for codec in (Codec.NONE, Codec.ZSTD)]
    return [*made, made[0] + made[1], made[0][:-3], made[1][:61]]


class FrameMaker:
    """Frames by a seed: each API in turn, in any of its versions, mutated or not."""

    def __init__(
        self,
        seed: int,
        names: Sequence[str],
        ids: Sequence[UUID],
        *,
        without: Sequence[ApiKey] = (),
        may_create: bool = False,
    ) -> None:
        self._random = random.Random(seed)
        self._near = NearMaker(seed, names, ids)
        self._far = MessageMaker(seed)
        self._apis = [one for one in APIS.values() if one.key not in without]
        self._whole = _ASKED_FOR if may_create else ()
        self._number = 0

    def make(self) -> Frame:
        chance = self._random
        self._number += 1
        api = self._apis[self._number % len(self._apis)]
        version = chance.randint(api.versions.first, api.versions.last)
        is_whole = api.key in self._whole
        maker = self._near if is_whole or chance.random() < 0.8 else self._far
        head = write_request_header(
            api.key, version, self._number, "hostile", is_flexible=api.is_flexible(version)
        )
        body = encode(maker.make(api.request, version), version)
        is_mutant = not is_whole and chance.random() < _MUTANT_SHARE
        if is_mutant:
            mutate(body, chance)
            if chance.random() < 0.05:
                mutate(head, chance)
        data = bytes(head + body)
        return Frame(api, version, self._number, LENGTH.pack(len(data)) + data, is_mutant)


def mutate(data: bytearray, chance: random.Random) -> None:
    """Changes bytes, cuts, inserts, doubles, or puts an extreme length somewhere."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        what = chance.randrange(6)
        at = chance.randint(0, len(data))
        if what == 0 and data:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        elif what == 1 and data:
            data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif what == 2:
            del data[at:]
        elif what == 3:
            data[at:at] = chance.randbytes(chance.randint(1, 9))
        elif what == 4:
            data[at : at + 4] = chance.choice(_EDGES)
        else:
            data[at:at] = data[at : at + chance.randint(1, 40)]
