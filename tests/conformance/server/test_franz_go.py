"""franz-go's clients do their work against the server."""

from pathlib import Path

import pytest

from tests.conformance.tools.franz import SCENARIOS, build_franz, run_scenario
from tests.conformance.tools.go_programs import ProgramMissing
from tests.support.kafka_server import ServerProcess

pytestmark = [pytest.mark.go, pytest.mark.timeout(1000)]


@pytest.fixture(scope="session")
def program() -> Path:
    try:
        return build_franz()
    except ProgramMissing as missing:
        pytest.skip(f"not run with franz-go: {missing}")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_franz_go_is_served(program: Path, server: ServerProcess, scenario: str, name: str) -> None:
    run_scenario(program, server.bootstrap, scenario, name)
