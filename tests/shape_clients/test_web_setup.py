"""What the tests of real clients need is found, installed, or named when it is missing."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.web_setup import (
    PACKAGES,
    find_chromium,
    find_missing,
    find_node,
    install,
    main,
)


@pytest.fixture
def programs(tmp_path: Path) -> Callable[..., Callable[[str], str | None]]:
    """Makes programs that say a version, and a way to find just those."""

    def make(**versions: str) -> Callable[[str], str | None]:
        for name, version in versions.items():
            path = tmp_path / name.replace("_", "-")
            path.write_text(f"#!/bin/sh\necho '{version}'\n")
            path.chmod(0o755)
        return lambda name: str(tmp_path / name) if (tmp_path / name).exists() else None

    return make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a package.json whose packages are not there yet."""
    made = tmp_path / "package"
    made.mkdir()
    return made


class Runner:
    """Notes commands; those that name a word of `failing` fail."""

    def __init__(self, *failing: str) -> None:
        self.commands: list[str] = []
        self._failing = failing

    def __call__(self, command: Sequence[str], directory: Path) -> int:
        self.commands.append(" ".join(command))
        return int(any(word in command for word in self._failing))


@pytest.mark.parametrize(
    ("version", "will_do"), [("v18.20.4", True), ("v16.1.0", False), ("", False)]
)
def test_a_node_counts_when_it_says_a_version_with_fetch(
    programs: Callable[..., Callable[[str], str | None]], version: str, *, will_do: bool
) -> None:
    assert (find_node(programs(node=version)) is not None) == will_do


def test_any_browser_of_chromiums_kind_will_do(
    programs: Callable[..., Callable[[str], str | None]],
) -> None:
    find = programs(google_chrome="Google Chrome 140.0")
    assert (find_chromium(find) or "").endswith("google-chrome")
    assert find_chromium(lambda name: None) is None


def test_what_is_missing_is_named_by_the_mark_of_its_tests(
    programs: Callable[..., Callable[[str], str | None]], folder: Path
) -> None:
    assert find_missing(lambda name: None, [folder]) == {
        "node": "Node.js 18 or newer",
        "browser": f"the packages of npm in {folder}",
    }
    find = programs(node="v20.1.0")
    (folder / "node_modules").mkdir()
    assert find_missing(find, [folder]) == {"browser": "Chromium"}
    assert find_missing(programs(chromium="Chromium 150"), [folder]) == {}


def test_root_with_apt_gets_everything_and_a_second_browser_where_the_first_is_not_packed(
    programs: Callable[..., Callable[[str], str | None]], folder: Path
) -> None:
    run = Runner("chromium-headless-shell")
    install(
        find_program=programs(apt_get="apt 2", npm="9"), run=run, is_root=True, packages=[folder]
    )
    assert [command.split()[-1] for command in run.commands] == [
        "update",
        "npm",
        "chromium-headless-shell",
        "chromium",
        "--no-fund",
    ]


def test_others_get_the_packages_of_npm_alone(
    programs: Callable[..., Callable[[str], str | None]], folder: Path
) -> None:
    run = Runner()
    install(
        find_program=programs(apt_get="apt 2", npm="9"), run=run, is_root=False, packages=[folder]
    )
    assert [command.split()[:2] for command in run.commands] == [["npm", "ci"]]


def test_wrong_usage_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--instal"]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda path: path.name)
def test_packages_are_locked_with_hashes_and_no_registry_is_named(folder: Path) -> None:
    text = (folder / "package-lock.json").read_text()
    assert "://" not in text
    packages = json.loads(text)["packages"]
    wanted = json.loads((folder / "package.json").read_text())["dependencies"]
    for name, version in wanted.items():
        assert packages[f"node_modules/{name}"]["version"] == version
    assert all(one["integrity"].startswith("sha512-") for name, one in packages.items() if name)
