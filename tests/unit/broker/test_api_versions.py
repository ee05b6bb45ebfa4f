"""ApiVersions."""

import pytest

from tests.support.broker_kit import BrokerKit
from varve.broker.handlers import HANDLERS
from varve.wire import ApiKey, ErrorCode
from varve.wire.messages.cluster import ApiVersionsRequest


@pytest.mark.parametrize("version", range(5))
def test_what_is_served_is_told(kit: BrokerKit, version: int) -> None:
    answer = kit.ask(ApiVersionsRequest("client", "1.0"), version=version)
    told = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
    assert set(told) == {*HANDLERS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
    assert told[ApiKey.PRODUCE] == (0, 13)  # older librdkafka would not compress otherwise
    assert told[ApiKey.FETCH] == (4, 17)
    assert answer.error_code == 0
    assert answer.finalized_features == []


@pytest.mark.parametrize("name", ["", "-a", "a b", "a\n"])
def test_a_name_that_breaks_the_rule_is_refused(kit: BrokerKit, name: str) -> None:
    answer = kit.ask(ApiVersionsRequest(name, "1"), version=3)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
