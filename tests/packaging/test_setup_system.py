"""What the system must bring: found by loading, named in one command, installed only as root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    import setup_system

    monkeypatch.setattr(setup_system.sys, "platform", "linux")
    return setup_system


class Machine:
    """A Debian machine of the test's making: which libraries load, who we are, what apt does."""

    def __init__(self, system: ModuleType, patch: pytest.MonkeyPatch, lacking: set[str]) -> None:
        self.lacking = lacking
        self.calls: list[list[str]] = []
        self.refusals = 0  # how many installs fail before one works
        self.cures = True
        patch.setattr(system, "can_load", lambda library: library not in self.lacking)
        patch.setattr(system, "has_font", lambda: "font" not in self.lacking)
        patch.setattr(system.shutil, "which", self._which)
        patch.setattr(system.subprocess, "run", self._run)
        patch.setattr(system, "_has_lists", lambda: True)
        patch.setattr(system.os, "geteuid", lambda: 0, raising=False)

    def _which(self, name: str) -> str | None:
        return None if name in self.lacking else f"/usr/bin/{name}"

    def _run(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert options["env"]["DEBIAN_FRONTEND"] == "noninteractive"
        self.calls.append(command)
        if "install" not in command:
            return subprocess.CompletedProcess(command, 0)
        if self.refusals:
            self.refusals -= 1
            return subprocess.CompletedProcess(command, 100)
        if self.cures:
            self.lacking.clear()
        return subprocess.CompletedProcess(command, 0)

    @property
    def verbs(self) -> list[str]:
        return [next(w for w in call if w in ("update", "install")) for call in self.calls]


@pytest.fixture
def machine(system: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with monkeypatch.context() as patch:
        yield Machine(system, patch, set())


def provide(system: ModuleType, for_tests: bool = False) -> None:
    system.provide("System libraries", lambda: system.missing(for_tests))


def test_nothing_missing_runs_nothing(system: ModuleType, machine: Machine) -> None:
    provide(system, for_tests=True)
    assert machine.calls == []


def test_an_ordinary_user_is_told_the_one_command(
    system: ModuleType, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system.os, "geteuid", lambda: 1000, raising=False)
    machine.lacking |= {"libxcb-cursor.so.0", "libgthread-2.0.so.0", "libglib-2.0.so.0"}
    with pytest.raises(
        system.SetupError, match=r"run `sudo apt-get install libglib2.0-0 libxcb-cursor0`"
    ):
        provide(system)
    assert machine.calls == []


def test_root_installs_what_is_missing_and_only_that(system: ModuleType, machine: Machine) -> None:
    machine.lacking |= {"libxcb-icccm.so.4", "font"}
    provide(system)
    assert machine.verbs == ["install"]
    assert machine.calls[0][-2:] == ["fonts-dejavu-core", "libxcb-icccm4"]


def test_xvfb_is_wanted_for_tests_only(system: ModuleType, machine: Machine) -> None:
    machine.lacking.add("Xvfb")
    provide(system)
    assert machine.calls == []
    provide(system, for_tests=True)
    assert machine.calls[0][-1] == "xvfb"


def test_old_package_lists_are_fetched_anew_once(system: ModuleType, machine: Machine) -> None:
    machine.lacking.add("libEGL.so.1")
    machine.refusals = 1
    provide(system)
    assert machine.verbs == ["install", "update", "install"]


def test_no_package_lists_are_fetched_first(
    system: ModuleType, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.lacking.add("libEGL.so.1")
    monkeypatch.setattr(system, "_has_lists", lambda: False)
    provide(system)
    assert machine.verbs == ["update", "install"]


def test_apt_that_fails_ends_in_one_sentence(system: ModuleType, machine: Machine) -> None:
    machine.lacking.add("libEGL.so.1")
    machine.refusals = 2
    with pytest.raises(system.SetupError, match="check the network"):
        provide(system)


def test_a_library_that_stays_missing_is_named(system: ModuleType, machine: Machine) -> None:
    machine.lacking.add("libEGL.so.1")
    machine.cures = False
    with pytest.raises(system.SetupError, match=r"libEGL\.so\.1.*--reinstall libegl1"):
        provide(system)


def test_without_apt_the_libraries_are_named(system: ModuleType, machine: Machine) -> None:
    machine.lacking |= {"libEGL.so.1", "apt-get"}
    with pytest.raises(system.SetupError, match=r"libEGL\.so\.1.*package manager"):
        provide(system)


def test_other_systems_bring_everything(
    system: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system.sys, "platform", "darwin")
    monkeypatch.setattr(system, "can_load", lambda library: False)
    assert system.missing(for_tests=True) == {}


def test_loading_tells_what_is_there(system: ModuleType) -> None:
    assert system.can_load("libc.so.6")
    assert not system.can_load("libtessera-does-not-exist.so.1")


def test_fonts_are_found_in_folders_below(system: ModuleType, tmp_path: Path) -> None:
    assert not system.has_font([str(tmp_path), str(tmp_path / "absent")])
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/README").write_text("no font")
    assert not system.has_font([str(tmp_path)])
    (tmp_path / "a/b/Face.TTF").write_bytes(b"")
    assert system.has_font([str(tmp_path)])


def test_the_table_covers_what_qt_links_to(system: ModuleType) -> None:
    """Every library that the xcb platform asks of the system is in the table, or is libc's own."""
    import PySide6

    plugin = Path(PySide6.__file__).parent / "Qt/plugins/platforms/libqxcb.so"
    if not plugin.exists():
        pytest.skip("Qt has no xcb platform on this system")
    listed = subprocess.run(["ldd", str(plugin)], capture_output=True, text=True).stdout
    direct = subprocess.run(
        ["ldd", str(plugin.parents[2] / "lib/libQt6XcbQpa.so.6")], capture_output=True, text=True
    ).stdout
    names = {line.split()[0] for line in (listed + direct).splitlines() if "=>" in line}
    ours = {
        name
        for name in names
        if name.startswith(("libxcb", "libX11", "libxkb", "libGL.", "libEGL"))
    }
    assert ours - set(system.LIBRARIES) == set()
