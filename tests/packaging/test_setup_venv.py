"""The environment: when it is ready, when it is made anew, what heals it, what a failure says."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    import setup_venv

    return setup_venv


class Workshop:
    """A checkout in a temporary folder, whose pip only writes down what it was asked."""

    def __init__(self, module: ModuleType, patch: pytest.MonkeyPatch, root: Path) -> None:
        (root / "packaging").mkdir(parents=True)
        shutil.copy(ROOT / "pyproject.toml", root)
        for name in (module.CONSTRAINTS, module.CONSTRAINTS_TRITON):
            shutil.copy(ROOT / name, root / name)
        self.root = root
        self.made = 0
        self.pip: list[tuple[str, ...]] = []
        self.environment = module.Environment(root, lambda output, code: f"said {output}")
        self._answers = False
        patch.setattr(module.Environment, "_answers", lambda _: self._answers)
        patch.setattr(module.Environment, "_make", lambda _: self._make())
        patch.setattr(module.Environment, "_pip", lambda _, *rest: self.pip.append(rest))
        patch.setattr(module.Environment, "_prove", lambda _: None)

    def _make(self) -> None:
        if not self._answers:
            self.made += 1
            self.environment.python.parent.mkdir(parents=True, exist_ok=True)
            self.environment.python.write_text("an interpreter")
            self.environment.site_packages().mkdir(parents=True, exist_ok=True)
            self._answers = True


@pytest.fixture
def workshop(module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Workshop:
    return Workshop(module, monkeypatch, tmp_path / "checkout")


def test_a_finished_set_up_does_nothing_again(workshop: Workshop) -> None:
    workshop.environment.ensure(for_tests=False)
    asked = list(workshop.pip)
    workshop.environment.ensure(for_tests=False)
    assert workshop.pip == asked
    assert workshop.made == 1


def test_torch_comes_first_and_triton_is_pinned_beside_a_cpu_build(workshop: Workshop) -> None:
    workshop.environment.ensure(for_tests=False)
    first, rest = workshop.pip
    assert first == ("torch",)
    assert rest[0] == "-c"
    assert rest[1].endswith("constraints-triton.txt")
    assert "pytest" not in rest


@pytest.mark.parametrize(
    ("needs", "brings"),
    [
        ("Requires-Dist: filelock", False),
        ("Requires-Dist: triton==3.7.1; platform_system == 'Linux'", True),
        ("Requires-Dist: triton==3.7.1; extra == 'all'", False),
    ],
)
def test_a_cuda_build_keeps_its_own_triton(workshop: Workshop, needs: str, brings: bool) -> None:
    workshop.environment._make()
    record = workshop.environment.site_packages() / "torch-2.13.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: 2\n{needs}\n")
    for name in ("INSTALLER", "RECORD"):
        (record / name).touch()
    workshop.environment.ensure(for_tests=False)
    assert ("-c" in workshop.pip[-1]) is not brings


def test_the_test_tools_are_added_when_tests_ask_for_them(workshop: Workshop) -> None:
    workshop.environment.ensure(for_tests=False)
    assert not workshop.environment.is_ready(for_tests=True)
    workshop.environment.ensure(for_tests=True)
    assert "pytest" in workshop.pip[-1]
    assert workshop.environment.is_ready(for_tests=False)
    assert workshop.made == 1


def test_new_pins_install_again_and_keep_the_test_tools(workshop: Workshop) -> None:
    workshop.environment.ensure(for_tests=True)
    with (workshop.root / "packaging/constraints.txt").open("a") as file:
        file.write("numpy==0\n")
    workshop.environment.ensure(for_tests=False)
    assert "pytest" in workshop.pip[-1]
    assert len(workshop.pip) == 4


@pytest.mark.parametrize(
    "stamp", [None, "", "{", "[]", '{"key": "of another time", "tests": true}']
)
def test_no_stamp_or_a_bad_one_is_not_ready(workshop: Workshop, stamp: str | None) -> None:
    workshop.environment.ensure(for_tests=False)
    path = workshop.environment.folder / "tessera-stamp.json"
    path.unlink()
    if stamp is not None:
        path.write_text(stamp)
    assert not workshop.environment.is_ready(for_tests=False)


def test_a_stamp_without_its_python_is_not_ready(workshop: Workshop) -> None:
    workshop.environment.ensure(for_tests=False)
    workshop.environment.python.unlink()
    assert not workshop.environment.is_ready(for_tests=False)


def test_a_run_that_dies_leaves_no_stamp(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop.environment.ensure(for_tests=False)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(workshop.environment), "_pip", die)
    with pytest.raises(KeyboardInterrupt):
        workshop.environment.ensure(for_tests=True)
    assert not workshop.environment.is_ready(for_tests=False)


def test_half_installed_packages_are_forgotten(workshop: Workshop) -> None:
    workshop.environment._make()
    site = workshop.environment.site_packages()
    for name, files in {"whole": ["INSTALLER", "RECORD"], "half": ["METADATA", "RECORD"]}.items():
        (site / f"{name}-1.dist-info").mkdir()
        for file in files:
            (site / f"{name}-1.dist-info" / file).touch()
    (site / "~umpy").mkdir()
    workshop.environment.ensure(for_tests=False)
    assert sorted(path.name for path in site.iterdir()) == ["whole-1.dist-info"]


def test_a_small_disk_is_refused_with_numbers(
    workshop: Workshop, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("usage", (), {"free": 1_000_000_000})
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(module.SetupError, match=r"about 3\.5 GB .* 1\.0 GB free"):
        workshop.environment.ensure(for_tests=False)
    assert workshop.made == 0


def test_a_read_only_folder_is_one_sentence(
    workshop: Workshop, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.os, "access", lambda *_: False)
    with pytest.raises(module.SetupError, match="cannot be written to"):
        workshop.environment.ensure(for_tests=False)


def test_an_error_while_writing_is_one_sentence(
    workshop: Workshop, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.Environment, "_write_stamp", full)
    with pytest.raises(module.SetupError, match="No space left on device"):
        workshop.environment.ensure(for_tests=False)


def test_a_missing_venv_module_names_its_package(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    lacking = module.find_missing_venv()
    assert set(lacking.values()) == {"python{}.{}-venv".format(*sys.version_info[:2])}


def test_a_half_made_environment_is_made_anew(module: ModuleType, tmp_path: Path) -> None:
    """For real: a folder that was cut off before pip arrived, then a whole one, then no change."""
    environment = module.Environment(tmp_path, lambda output, code: output)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    environment._make()
    assert environment._answers()
    before = environment.python.lstat().st_mtime_ns
    environment._make()
    assert environment.python.lstat().st_mtime_ns == before
    (environment.site_packages() / "pip").rename(tmp_path / "pip-is-gone")
    for record in environment.site_packages().glob("pip-*.dist-info"):
        (record / "INSTALLER").unlink()
    assert not environment._answers()


def test_pip_failures_become_sentences(
    module: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """For real, as far as pip's first words: an index that refuses every connection."""
    from app.library.pip_errors import explain

    environment = module.Environment(ROOT, explain)
    monkeypatch.setattr(module.Environment, "python", Path(sys.executable))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_TARGET", str(tmp_path))
    with pytest.raises(module.SetupError, match="check the network connection"):
        environment._pip("tessera-no-such-package")


def test_every_requirement_is_pinned_and_installed_as_pinned(module: ModuleType) -> None:
    """The pins are those that these tests run with."""
    from importlib import metadata

    lines = (ROOT / module.CONSTRAINTS).read_text(encoding="utf-8").splitlines()
    lines += (ROOT / module.CONSTRAINTS_TRITON).read_text(encoding="utf-8").splitlines()
    pins = dict(line.lower().split("==") for line in lines if line and not line.startswith("#"))
    environment = module.Environment(ROOT, lambda output, code: output)
    for requirement in environment.requirements(for_tests=True):
        name = requirement.replace(";", " ").replace(">", " ").split()[0].lower()
        pinned = pins.get(name) or pins.get(name.replace("-", "_"))
        assert pinned, f"{name} has no pin"
        if name != "triton":
            assert metadata.version(name).split("+")[0] == pinned, name


def test_the_stamp_is_readable_json(workshop: Workshop) -> None:
    workshop.environment.ensure(for_tests=True)
    stamp = json.loads((workshop.environment.folder / "tessera-stamp.json").read_text())
    assert stamp["tests"] is True
