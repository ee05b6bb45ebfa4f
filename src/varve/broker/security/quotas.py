"""Client quotas: the stored table, and how long a client over its quota must wait.

The rate is that of the last `quota.window.num` windows. A client above its quota waits until the
rate over the measured time has come down to it, as in Kafka: the response says so, and the client's
connection is not read meanwhile.

Layout     `varve-quotas.json`: entities and their values. docs/reference/formats/directory.md
Invariant  an entity names a user, a client id, or both; None stands for those without a quota of
           their own. Clients without a quota are not measured. The number of measured clients is
           bounded: those not seen for longest are dropped.
Crash      see `directory_document`.
Threads    the table changes off the loop, one change at a time under `_lock`; `quotas` is replaced
           as a whole and read without it. Measuring is the loop's.
"""

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from varve.broker.request import Principal
from varve.broker.security.directory_document import DirectoryDocument
from varve.broker.settings import QuotaSettings
from varve.commit_log.health import DirectoryHealth
from varve.disk import FileSystem
from varve.foundation.clock import Clock
from varve.foundation.errors import InvalidRequest
from varve.wire import ApiKey

QUOTAS_FILE: Final = "varve-quotas.json"
ENTITY_COUNT_MAX: Final = 100_000
_NAME_LENGTH_MAX: Final = 4_096


class QuotaKind(StrEnum):
    """What is measured."""

    PRODUCE = "producer_byte_rate"
    CONSUME = "consumer_byte_rate"
    REQUEST = "request_percentage"

    @property
    def is_whole(self) -> bool:
        return self is not QuotaKind.REQUEST


class EntityType(StrEnum):
    """What distinguishes clients."""

    USER = "user"
    CLIENT_ID = "client-id"


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """Clients that a quota is for, by type; a name of None is the default."""

    names: tuple[tuple[EntityType, str | None], ...]

    @classmethod
    def from_names(cls, names: Iterable[tuple[EntityType, str | None]]) -> "QuotaEntity":
        """Raises InvalidRequest for a type twice or none at all."""
        ordered = tuple(sorted(names, key=lambda item: item[0]))
        types = [type for type, _ in ordered]
        if not types:
            raise InvalidRequest("Invalid empty client quota entity")
        if len(set(types)) < len(types):
            raise InvalidRequest(f"Invalid client quota entity, {types[0]} is named twice")
        for _, name in ordered:
            if name is not None and not 0 < len(name) <= _NAME_LENGTH_MAX:
                raise InvalidRequest(
                    f"Invalid client quota entity, a name of {len(name)} characters; it has 1 to "
                    f"{_NAME_LENGTH_MAX}"
                )
        return cls(ordered)


Quotas = Mapping[QuotaEntity, Mapping[QuotaKind, float]]
Changes = Mapping[QuotaKind, float | None]
"""New values; None takes one away."""


def check_value(kind: QuotaKind, value: float) -> None:
    """Raises InvalidRequest for a value that is not a rate."""
    if not (math.isfinite(value) and value > 0):
        raise InvalidRequest(f"Quota {kind.value} must be greater than 0, not {value}")
    if kind.is_whole and value != math.floor(value):
        raise InvalidRequest(f"Quota {kind.value} must be a whole number, not {value}")


class QuotaTable:
    """All quotas. `load` before use."""

    def __init__(self, fs: FileSystem, directories: Sequence[DirectoryHealth]) -> None:
        self._file = DirectoryDocument(fs, directories, QUOTAS_FILE)
        self._lock = threading.Lock()
        self.quotas: Quotas = {}

    def load(self) -> None:
        """Reads the quotas; raises Corrupt for what it cannot understand."""
        with self._lock:
            self.quotas = self._file.read_as(_decode_all)

    def alter(self, changes: Iterable[tuple[QuotaEntity, Changes]]) -> None:
        """Sets and removes values, all or none."""
        with self._lock:
            quotas = {entity: dict(values) for entity, values in self.quotas.items()}
            for entity, values in changes:
                kept = quotas.setdefault(entity, {})
                for kind, value in values.items():
                    if value is None:
                        kept.pop(kind, None)
                    else:
                        check_value(kind, value)
                        kept[kind] = value
            quotas = {entity: values for entity, values in quotas.items() if values}
            if len(quotas) > ENTITY_COUNT_MAX:
                raise InvalidRequest(
                    f"there would be quotas of {len(quotas)} entities, the limit is "
                    f"{ENTITY_COUNT_MAX}; use defaults"
                )
            if quotas != self.quotas:
                self._file.write(_encode_all(quotas))
                self.quotas = quotas


def _encode_all(quotas: Quotas) -> dict[str, Any]:
    entries = [
        {
            "entity": {type.value: name for type, name in entity.names},
            "values": {kind.value: values[kind] for kind in sorted(values)},
        }
        for entity, values in quotas.items()
    ]
    return {"quotas": entries}


def _decode_all(content: Mapping[str, Any]) -> Quotas:
    quotas = {}
    for item in content.get("quotas", []):
        names = [(EntityType(type), name) for type, name in item["entity"].items()]
        if not all(name is None or isinstance(name, str) for _, name in names):
            raise TypeError("the name of an entity is not a string")
        values = {QuotaKind(key): float(value) for key, value in item["values"].items()}
        for kind, value in values.items():
            check_value(kind, value)
        quotas[QuotaEntity.from_names(names)] = values
    return quotas


_METER_COUNT_MAX: Final = 16_384
_ANSWER_COUNT_MAX: Final = 16_384

_USER: Final = EntityType.USER
_CLIENT: Final = EntityType.CLIENT_ID

_Payer = tuple[QuotaKind, str | None, str | None]
"""Whose requests are added up: those of a user, of a client id, or of both."""


class _Meter:
    """The rate of a client over the last windows."""

    __slots__ = ("_count", "_window_ms", "_windows")

    def __init__(self, settings: QuotaSettings) -> None:
        self._count = settings.window_count
        self._window_ms = settings.window_seconds * 1_000
        self._windows: deque[tuple[int, float]] = deque()

    def add(self, value: float, now_ms: int) -> tuple[float, int]:
        """The rate with this value in it, by second, and the time that it was measured over."""
        windows = self._windows
        if windows and windows[-1][0] <= now_ms < windows[-1][0] + self._window_ms:
            windows[-1] = (windows[-1][0], windows[-1][1] + value)
        else:
            windows.append((now_ms, value))
        while windows[0][0] <= now_ms - self._count * self._window_ms or windows[0][0] > now_ms:
            windows.popleft()
        # The first requests of a client are not extrapolated.
        least_ms = (self._count - 1) * self._window_ms
        elapsed_ms = max(now_ms - windows[0][0], least_ms, self._window_ms)
        return sum(used for _, used in windows) * 1_000 / elapsed_ms, elapsed_ms


class ClientQuotas:
    """The quotas in effect, and the measured rates of clients."""

    def __init__(self, table: QuotaTable, settings: QuotaSettings, clock: Clock) -> None:
        self.table = table
        self._settings = settings
        self._clock = clock
        self._quotas = table.quotas
        self._cache: dict[tuple[QuotaKind, str, str], tuple[float, _Payer] | None] = {}
        self._meters: OrderedDict[_Payer, _Meter] = OrderedDict()

    @property
    def are_set(self) -> bool:
        """Whether any client has a quota."""
        return bool(self.table.quotas)

    def charge_request(
        self,
        api_key: ApiKey,
        principal: Principal,
        client_id: str,
        *,
        received_bytes: int,
        sent_bytes: int,
        elapsed_ms: float,
    ) -> int:
        """Adds a request to the use of its client; the milliseconds that the client must wait."""
        if not self._current():
            return 0
        user = principal.name
        wait_ms = self._charge(QuotaKind.REQUEST, user, client_id, elapsed_ms / 10)
        if api_key is ApiKey.PRODUCE:
            produce_ms = self._charge(QuotaKind.PRODUCE, user, client_id, received_bytes)
            return max(wait_ms, produce_ms)
        if api_key is ApiKey.FETCH:
            return max(wait_ms, self._charge(QuotaKind.CONSUME, user, client_id, sent_bytes))
        return wait_ms

    def _current(self) -> Quotas:
        if self._quotas is not self.table.quotas:
            self._quotas = self.table.quotas
            self._cache.clear()
        return self._quotas

    def _charge(self, kind: QuotaKind, user: str, client_id: str, value: float) -> int:
        quota_and_payer = self._find(kind, user, client_id)
        if quota_and_payer is None:
            return 0
        quota, payer = quota_and_payer
        rate, elapsed_ms = self._meter(payer).add(value, self._clock.now_ms())
        if rate <= quota:
            return 0
        window_ms = self._settings.window_count * self._settings.window_seconds * 1_000
        return min(round((rate - quota) / quota * elapsed_ms), window_ms)

    def _find(self, kind: QuotaKind, user: str, client_id: str) -> tuple[float, _Payer] | None:
        key = (kind, user, client_id)
        if key not in self._cache:
            if len(self._cache) >= _ANSWER_COUNT_MAX:
                self._cache.clear()
            self._cache[key] = _find_quota(self._quotas, kind, user, client_id)
        return self._cache[key]

    def _meter(self, payer: _Payer) -> _Meter:
        meter = self._meters.get(payer)
        if meter is None:
            if len(self._meters) >= _METER_COUNT_MAX:
                self._meters.popitem(last=False)
            meter = self._meters[payer] = _Meter(self._settings)
        self._meters.move_to_end(payer)
        return meter


def _find_quota(
    quotas: Quotas, kind: QuotaKind, user: str, client_id: str
) -> tuple[float, _Payer] | None:
    """The quota in effect, by Kafka's order of precedence, and who shares it."""
    both, of_user, of_client = (kind, user, client_id), (kind, user, None), (kind, None, client_id)
    order: tuple[tuple[tuple[tuple[EntityType, str | None], ...], _Payer], ...] = (
        (((_CLIENT, client_id), (_USER, user)), both),
        (((_CLIENT, None), (_USER, user)), both),
        (((_USER, user),), of_user),
        (((_CLIENT, client_id), (_USER, None)), both),
        (((_CLIENT, None), (_USER, None)), both),
        (((_USER, None),), of_user),
        (((_CLIENT, client_id),), of_client),
        (((_CLIENT, None),), of_client),
    )
    for names, payer in order:
        values = quotas.get(QuotaEntity(names), {})
        if kind in values:
            return values[kind], payer
    return None
