"""What set-up installs, what it says before, and how uv learns the settings of pip."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The program with an environment of its own, none of whose steps installs anything."""
    spec = importlib.util.spec_from_file_location("setup_environment", _PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "setup_environment", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ENVIRONMENT", tmp_path)
    monkeypatch.setattr(module, "installed", [], raising=False)
    for step in (*module.PURPOSES["run"], *module.PURPOSES["test"]):
        # A frozen step: its function is replaced, not the step, which is compared by value.
        object.__setattr__(step, "install", lambda name=step.name: module.installed.append(name))
    return module


_PROGRAM = ROOT / "tools" / "setup_environment.py"


def test_everything_is_announced_before_it_is_installed(
    setup: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    before: list[str] = []
    object.__setattr__(
        setup.RUN_PACKAGES, "install", lambda: before.append(capsys.readouterr().out)
    )
    assert setup.main(["run"]) == 0
    assert all(word in before[0] for word in ("Python packages", "Kernels", "Java", "Spark"))
    assert "Chromium" not in before[0]


def test_run_installs_nothing_that_only_tests_need(setup: ModuleType) -> None:
    assert setup.main(["run"]) == 0
    assert sorted(setup.installed) == ["ready-java", "ready-kernels", "ready-run"]


def test_what_is_done_is_not_done_again(
    setup: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert setup.main(["test"]) == 0
    assert sorted(setup.installed) == ["ready-dev", "ready-java", "ready-kernels", "ready-web"]
    capsys.readouterr()
    assert setup.main(["test"]) == 0
    assert setup.main(["dev"]) == 0
    assert len(setup.installed) == 4
    assert capsys.readouterr().out == ""


def test_a_changed_lock_installs_again(setup: ModuleType, tmp_path: Path) -> None:
    setup.main(["run"])
    (tmp_path / ".ready-run").write_text("the digest of another lock")
    setup.main(["run"])
    assert setup.installed.count("ready-run") == 2
    assert setup.installed.count("ready-kernels") == 1


def test_a_failed_step_is_reported_and_tried_again(
    setup: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise subprocess.CalledProcessError(1, ["uv", "pip"])

    object.__setattr__(setup.RUN_PACKAGES, "install", fail)
    assert setup.main(["run"]) == 1
    assert "error: `uv pip` failed" in capsys.readouterr().err
    assert not setup.RUN_PACKAGES.is_done()


def test_uv_gets_the_index_and_certificates_of_pip(setup: ModuleType) -> None:
    listed = (
        ":env:.cert='/ca.pem'\n:env:.index-url='http://env/simple'\n"
        "global.index-url='http://file/simple'\nglobal.extra-index-url='\\nhttp://a\\nhttp://b'\n"
        "install.find-links='/wheels /more'\nglobal.timeout='60'\nfreeze.timeout='1'\n"
    )
    assert setup.uv_variables({}, listed) == {
        "UV_DEFAULT_INDEX": "http://env/simple",
        "UV_INDEX": "http://a http://b",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_HTTP_TIMEOUT": "60",
        "SSL_CERT_FILE": "/ca.pem",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


def test_variables_of_uv_win_over_settings_of_pip(setup: ModuleType) -> None:
    listed = "global.index-url='http://file/simple'\nglobal.cert='/ca.pem'\n"
    given = {"UV_INDEX_URL": "http://mine/simple", "SSL_CERT_FILE": "/mine.pem"}
    assert setup.uv_variables(given, listed) == {}


def test_uv_is_pinned_by_the_locks_with_its_hashes(setup: ModuleType) -> None:
    for lock in (setup.RUN_LOCK, setup.DEV_LOCK):
        lines = setup.find_locked("uv", lock.read_text()).splitlines()
        assert lines[0].startswith("uv==")
        assert len(lines) > 1
        assert all("--hash=sha256:" in line for line in lines[1:])


def test_wrong_usage_is_refused(setup: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert setup.main(["everything"]) == 2
    assert capsys.readouterr().err == "usage: setup_environment.py run|dev|test\n"
