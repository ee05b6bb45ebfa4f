"""Measures what clients use and says how long one that exceeds its quota must wait.

The rate is that of the last `quota.window.num` windows. Who is above its quota waits until the rate
over the time it was measured has come down to it, as in Kafka: the answer tells the client, and the
connection is not read meanwhile.

Invariant  users and client ids without a quota cost nothing and are not remembered. Those with one
           are, but not more than a bound: then those not seen for longest are forgotten.
Threads    the loop's alone, but for the table; see there.
"""

from collections import OrderedDict, deque
from typing import Final

from varve.broker.context import RequestContext
from varve.broker.security.quota_table import EntityType, QuotaEntity, QuotaKind, Quotas, QuotaTable
from varve.broker.security.settings import QuotaSettings
from varve.foundation.clock import Clock
from varve.wire import ApiKey

_METER_COUNT_MAX: Final = 16_384
_ANSWER_COUNT_MAX: Final = 16_384

_USER: Final = EntityType.USER
_CLIENT: Final = EntityType.CLIENT_ID

_Payer = tuple[QuotaKind, str | None, str | None]
"""Whose use is added up: a user, a client id, or one of the other."""


class _Meter:
    """What was used in the last windows."""

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
        # A client that has just begun is not taken for one that goes on like this.
        least_ms = (self._count - 1) * self._window_ms
        elapsed_ms = max(now_ms - windows[0][0], least_ms, self._window_ms)
        return sum(used for _, used in windows) * 1_000 / elapsed_ms, elapsed_ms


class ClientQuotas:
    """The quotas in force, and who has used how much of them."""

    def __init__(self, table: QuotaTable, settings: QuotaSettings, clock: Clock) -> None:
        self.table = table
        self._settings = settings
        self._clock = clock
        self._quotas = table.quotas
        self._found: dict[tuple[QuotaKind, str, str], tuple[float, _Payer] | None] = {}
        self._meters: OrderedDict[_Payer, _Meter] = OrderedDict()

    @property
    def are_set(self) -> bool:
        """Whether anybody has a quota."""
        return bool(self.table.quotas)

    def note_request(
        self, context: RequestContext, received_bytes: int, sent_bytes: int, elapsed_ms: float
    ) -> int:
        """Adds a request to what its client has used; how long the client must wait now, in
        milliseconds.
        """
        if not self._current():
            return 0
        waits_ms = self._note(context, QuotaKind.REQUEST, elapsed_ms / 10)
        if context.api_key is ApiKey.PRODUCE:
            waits_ms = max(waits_ms, self._note(context, QuotaKind.PRODUCE, received_bytes))
        elif context.api_key is ApiKey.FETCH:
            waits_ms = max(waits_ms, self._note(context, QuotaKind.CONSUME, sent_bytes))
        return waits_ms

    def _current(self) -> Quotas:
        if self._quotas is not self.table.quotas:
            self._quotas = self.table.quotas
            self._found.clear()
        return self._quotas

    def _note(self, context: RequestContext, kind: QuotaKind, value: float) -> int:
        found = self._find(kind, context.principal.name, context.client_id)
        if found is None:
            return 0
        quota, payer = found
        rate, elapsed_ms = self._meter(payer).add(value, self._clock.now_ms())
        if rate <= quota:
            return 0
        window_ms = self._settings.window_count * self._settings.window_seconds * 1_000
        return min(round((rate - quota) / quota * elapsed_ms), window_ms)

    def _find(self, kind: QuotaKind, user: str, client_id: str) -> tuple[float, _Payer] | None:
        asked = (kind, user, client_id)
        if asked not in self._found:
            if len(self._found) >= _ANSWER_COUNT_MAX:
                self._found.clear()
            self._found[asked] = _find_quota(self._quotas, kind, user, client_id)
        return self._found[asked]

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
    """The quota that counts, by Kafka's order, and who shares it."""
    both, of_user, of_client = (kind, user, client_id), (kind, user, None), (kind, None, client_id)
    order: tuple[tuple[dict[EntityType, str | None], _Payer], ...] = (
        ({_USER: user, _CLIENT: client_id}, both),
        ({_USER: user, _CLIENT: None}, both),
        ({_USER: user}, of_user),
        ({_USER: None, _CLIENT: client_id}, both),
        ({_USER: None, _CLIENT: None}, both),
        ({_USER: None}, of_user),
        ({_CLIENT: client_id}, of_client),
        ({_CLIENT: None}, of_client),
    )
    for names, payer in order:
        values = quotas.get(QuotaEntity(tuple(sorted(names.items(), key=lambda one: one[0]))))
        if values is not None and kind in values:
            return values[kind], payer
    return None
