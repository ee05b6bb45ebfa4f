"""Java for Spark: which one is found, and how one is installed where there is none."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from varve.foundation.errors import Unavailable
from varve.spark import java, session
from varve.spark.java import (
    MANAGERS,
    Java,
    PackageManager,
    find_java,
    get_java,
    install_java,
    read_java,
)

_SAYS = """#!/bin/sh
echo '    java.home = {home}' >&2
echo '    java.specification.version = {version}' >&2
echo '    java.version = {version}.0.1' >&2
exit {status}
"""


def make_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def make_java(home: Path, version: str, status: int = 0) -> str:
    make_program(home / "bin" / "java", _SAYS.format(home=home, version=version, status=status))
    return str(home)


class Places:
    """Where a Java may be."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.set()

    def set(self, *patterns: str, path: str = "/nowhere", home: str | None = None) -> None:
        self._patch.setattr(java, "HOME_PATTERNS", patterns)
        self._patch.setenv("PATH", path)
        if home is None:
            self._patch.delenv("JAVA_HOME", raising=False)
        else:
            self._patch.setenv("JAVA_HOME", home)


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Places:
    return Places(monkeypatch)


def test_java_home_comes_before_path_and_path_before_other_places(
    tmp_path: Path, places: Places
) -> None:
    told = make_java(tmp_path / "told", "21")
    on_path = make_java(tmp_path / "on-path", "17")
    installed = make_java(tmp_path / "jvm" / "java-25", "25")
    pattern, path = f"{tmp_path}/jvm/*", f"{on_path}/bin"
    for home, found_path, found in (
        (told, path, Java(told, 21)),
        (None, path, Java(on_path, 17)),
        (None, "/nowhere", Java(installed, 25)),
    ):
        places.set(pattern, path=found_path, home=home)
        assert find_java() == found
    places.set()
    assert find_java() is None


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_a_java_that_is_too_old_is_passed_over(
    tmp_path: Path, places: Places, version: str
) -> None:
    old = make_java(tmp_path / "old", version)
    new = make_java(tmp_path / "jvm" / "new", "17")
    places.set(f"{tmp_path}/jvm/*", home=old)
    assert find_java() == Java(new, 17)
    places.set(home=old)
    with pytest.raises(Unavailable, match=rf"only Java {int(version[-2:].strip('.'))} in {old}"):
        get_java()


def test_a_program_that_fails_or_says_nothing_is_no_java(tmp_path: Path) -> None:
    failing = make_java(tmp_path / "failing", "17", status=1)
    silent = make_program(tmp_path / "silent", "#!/bin/sh\n")
    broken = make_program(tmp_path / "broken", "no program")
    assert read_java(f"{failing}/bin/java") is None
    assert read_java(str(silent)) is None
    assert read_java(str(broken)) is None
    assert read_java(str(tmp_path / "missing")) is None


def test_the_error_names_the_remedy(places: Places) -> None:
    with pytest.raises(Unavailable, match=r"Java 17 or newer.*none.*--install.*JAVA_HOME"):
        get_java()
    places.set(home="/jdk")
    with pytest.raises(Unavailable, match=r"none.*\(JAVA_HOME is /jdk\)"):
        get_java()


def test_a_session_without_java_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Java:
        raise Unavailable("no Java")

    monkeypatch.setattr("varve.spark.java.get_java", fail)
    monkeypatch.setattr(session, "_find_live_session", lambda master: None)
    with pytest.raises(Unavailable, match="no Java"):
        session.get_session()


_DNF = "dnf install --assumeyes java-17-openjdk-headless"


class Shell:
    """Package managers that note what they are told; `refuses` are words they fail on."""

    def __init__(self, *programs: str, refuses: Sequence[str] = ()) -> None:
        self.programs, self.refuses = programs, refuses
        self.ran: list[str] = []

    def find(self, program: str) -> str | None:
        return f"/usr/bin/{program}" if program in self.programs else None

    def run(self, command: Sequence[str]) -> int:
        self.ran.append(" ".join(command))
        return int(any(word in self.refuses for word in command))

    def install(self, *, is_root: bool = True, has_terminal: bool = False) -> str:
        return install_java(
            find_program=self.find, run=self.run, is_root=is_root, has_terminal=has_terminal
        )


@pytest.mark.parametrize("manager", MANAGERS, ids=lambda manager: manager.program)
def test_every_package_manager_installs_its_first_package(
    manager: PackageManager,
) -> None:
    shell = Shell(manager.program)
    assert shell.install() == manager.packages[0]
    assert shell.ran[-1].startswith(f"{manager.program} ")
    assert shell.ran[-1].endswith(manager.packages[0])
    assert "17" in manager.packages[0]


def test_a_failed_refresh_and_a_missing_package_do_not_keep_from_installing_the_next(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shell = Shell("apt-get", refuses=["update", "openjdk-17-jre-headless"])
    assert shell.install() == "openjdk-21-jre-headless"
    assert shell.ran[0] == "apt-get update"
    assert "`apt-get update` failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("programs", "refuses", "is_root", "has_terminal", "told"),
    [
        (["apk"], ["add"], True, False, "apk could install none of openjdk17-jre-headless, "),
        ([], [], True, False, "none of apt-get, dnf, .*adoptium.* JAVA_HOME"),
        (["dnf", "sudo"], ["true"], False, False, "run `dnf install .*java-17.*` as root"),
        (["zypper"], [], False, True, "`zypper .*java-17-openjdk-headless` as root"),
    ],
    ids=["no package", "no manager", "no password", "no sudo"],
)
def test_what_cannot_be_installed_is_an_error_that_names_the_remedy(
    programs: list[str], refuses: list[str], is_root: bool, has_terminal: bool, told: str
) -> None:
    shell = Shell(*programs, refuses=refuses)
    with pytest.raises(Unavailable, match=told):
        shell.install(is_root=is_root, has_terminal=has_terminal)
    assert programs == ["apk"] or not any("install" in line for line in shell.ran)


@pytest.mark.parametrize(
    ("programs", "refuses", "is_root", "has_terminal", "ran"),
    [
        (["dnf", "sudo"], [], True, False, [_DNF]),
        (["dnf", "sudo"], [], False, False, ["sudo -n true", f"sudo -n {_DNF}"]),
        (["dnf", "sudo"], ["true"], False, True, [f"sudo {_DNF}"]),
        (["brew", "sudo"], [], False, False, ["brew install openjdk@17"]),
    ],
    ids=["root", "sudo", "sudo asks on a terminal", "never for Homebrew"],
)
def test_sudo_is_used_only_where_it_is_needed(
    programs: list[str], refuses: list[str], is_root: bool, has_terminal: bool, ran: list[str]
) -> None:
    shell = Shell(*programs, refuses=refuses)
    shell.install(is_root=is_root, has_terminal=has_terminal)
    assert shell.ran == ran


def test_the_command_installs_with_the_manager_on_path_and_finds_what_it_installed(
    tmp_path: Path,
) -> None:
    home, programs = tmp_path / "java-17", tmp_path / "programs"
    ready = make_java(tmp_path / "package", "17")
    make_program(
        programs / "apt-get",
        f'#!/bin/sh\n[ "$1" = update ] || /bin/cp -r {ready} {home}\n',
    )
    script = (
        "import os, sys; from varve.spark import java; os.geteuid = lambda: 0; "
        f"java.HOME_PATTERNS = ('{home}',); "
        "sys.exit(java.main(sys.argv[1:]))"
    )
    environment = {"PATH": str(programs), "HOME": str(tmp_path)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", script, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    before = run()
    assert before.returncode == 1
    assert "install one with `python -m varve.spark.java --install`" in before.stderr
    installed = run("--install")
    assert installed.returncode == 0, installed.stderr
    assert "$ apt-get install --yes" in installed.stderr
    assert run().stdout.startswith("Spark runs on Java 17 in ")


def test_what_is_found_is_found_again_by_its_home(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_java()
    if found is None:
        pytest.skip("there is no Java here")
    Places(monkeypatch).set(home=found.home)
    assert find_java() == found
    assert os.path.isdir(found.home)


def test_the_command_prints_no_warning() -> None:
    command = [sys.executable, "-m", "varve.spark.java", "--wrong"]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 2
    assert outcome.stderr == "usage: python -m varve.spark.java [--install]\n"
