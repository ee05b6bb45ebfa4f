"""A wait for a request that kafka-python has dropped is ended, and no other."""

import threading
from collections.abc import Iterator

import pytest

from tools.soak import forgetful
from tools.soak.forgetful import ForgetfulProducer, Forgotten

WAIT_SECONDS = 10.0


class FakeClient:
    """kafka-python's producer, and its manager of transactions."""

    def __init__(self) -> None:
        self._transaction_manager = self
        self._pending_requests: list[str] = []
        self.error: Exception | None = None
        self.ends = threading.Event()

    def is_completing(self) -> bool:
        return not self.ends.is_set()

    def has_in_flight_transactional_request(self) -> bool:
        return False

    def commit_transaction(self) -> None:
        self.ends.wait(WAIT_SECONDS)
        if self.error is not None:
            raise self.error


class FakeProducer(ForgetfulProducer):
    def __init__(self, client: FakeClient) -> None:
        self._producer = client


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClient]:
    monkeypatch.setattr(forgetful, "_LOOK_SECONDS", 0.005)
    monkeypatch.setattr(forgetful, "_FORGOTTEN_SECONDS", 0.05)
    made = FakeClient()
    yield made
    made.ends.set()


def test_a_commit_that_nothing_will_end_is_forgotten(client: FakeClient) -> None:
    with pytest.raises(Forgotten):
        FakeProducer(client).commit()


def test_a_commit_whose_request_is_queued_is_waited_for(client: FakeClient) -> None:
    client._pending_requests.append("EndTxn")
    timer = threading.Timer(0.2, client.ends.set)
    timer.start()
    FakeProducer(client).commit()
    timer.join()


def test_the_error_of_a_commit_is_handed_on(client: FakeClient) -> None:
    client.error = ValueError("refused")
    client.ends.set()
    with pytest.raises(ValueError, match="refused"):
        FakeProducer(client).commit()
