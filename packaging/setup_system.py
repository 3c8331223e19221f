"""What the operating system must bring: the libraries of Qt's xcb platform, a font, Xvfb for tests.

Linux only; elsewhere Qt's own package brings everything. Found by loading, not by asking a
package manager, so that it is true on every distribution.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from setup_report import SetupError, say

# What libqxcb.so and QtGui link to outside their own package: file -> Debian package.
LIBRARIES: dict[str, str] = {
    "libEGL.so.1": "libegl1",
    "libGL.so.1": "libgl1",
    "libX11-xcb.so.1": "libx11-xcb1",
    "libX11.so.6": "libx11-6",
    "libdbus-1.so.3": "libdbus-1-3",
    "libfontconfig.so.1": "libfontconfig1",
    "libfreetype.so.6": "libfreetype6",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libgthread-2.0.so.0": "libglib2.0-0",
    "libxcb-cursor.so.0": "libxcb-cursor0",
    "libxcb-icccm.so.4": "libxcb-icccm4",
    "libxcb-image.so.0": "libxcb-image0",
    "libxcb-keysyms.so.1": "libxcb-keysyms1",
    "libxcb-randr.so.0": "libxcb-randr0",
    "libxcb-render-util.so.0": "libxcb-render-util0",
    "libxcb-render.so.0": "libxcb-render0",
    "libxcb-shape.so.0": "libxcb-shape0",
    "libxcb-shm.so.0": "libxcb-shm0",
    "libxcb-sync.so.1": "libxcb-sync1",
    "libxcb-util.so.1": "libxcb-util1",
    "libxcb-xfixes.so.0": "libxcb-xfixes0",
    "libxcb-xkb.so.1": "libxcb-xkb1",
    "libxcb.so.1": "libxcb1",
    "libxkbcommon-x11.so.0": "libxkbcommon-x11-0",
    "libxkbcommon.so.0": "libxkbcommon0",
    "libzstd.so.1": "libzstd1",
}
FONT_PACKAGE = "fonts-dejavu-core"
XVFB_PACKAGE = "xvfb"
FONT_FOLDERS = ("/usr/share/fonts", "/usr/local/share/fonts", "~/.local/share/fonts", "~/.fonts")
FONT_ENDINGS = (".ttf", ".otf", ".ttc")


def can_load(library: str) -> bool:
    """Whether the dynamic linker finds and loads `library`."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def has_font(folders: Iterable[str] = FONT_FOLDERS) -> bool:
    """Whether any scalable font is installed; without one, Qt draws boxes for letters."""
    for folder in folders:
        for _, _, names in os.walk(os.path.expanduser(folder)):
            if any(name.lower().endswith(FONT_ENDINGS) for name in names):
                return True
    return False


def missing(for_tests: bool) -> dict[str, str]:
    """What is not there: thing -> Debian package that brings it. Empty on other systems."""
    if not sys.platform.startswith("linux"):
        return {}
    lacking = {name: package for name, package in LIBRARIES.items() if not can_load(name)}
    if not has_font():
        lacking["a font"] = FONT_PACKAGE
    if for_tests and shutil.which("Xvfb") is None:
        lacking["Xvfb"] = XVFB_PACKAGE
    return lacking


def venv_package() -> str:
    """The Debian package with this Python's venv module."""
    return f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"


def provide(what: str, find_missing: Callable[[], dict[str, str]]) -> None:
    """Return when `find_missing()` is empty; as root on Debian or Ubuntu, install what it names.

    Raises:
        SetupError: something is missing and only the user can install it; names the command.
    """
    lacking = find_missing()
    if not lacking:
        return
    if not can_install():
        raise SetupError(_instruction(what, lacking))
    packages = sorted(set(lacking.values()))
    say(f"Installing system packages: {' '.join(packages)}")
    _apt_install(packages)
    still = find_missing()
    if still:
        raise SetupError(
            f"{what} still not there after installing {' '.join(packages)}: {', '.join(still)}. "
            "Run `apt-get install --reinstall "
            f"{' '.join(sorted(set(still.values())))}` and try again."
        )


def can_install() -> bool:
    """Whether we are root on a system with apt-get."""
    return hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get") is not None


def _instruction(what: str, lacking: dict[str, str]) -> str:
    """The one sentence that names what is missing and the command that brings it."""
    packages = " ".join(sorted(set(lacking.values())))
    names = ", ".join(lacking)
    if shutil.which("apt-get") is None:
        return (
            f"{what} missing ({names}): install them with this system's package manager "
            f"(Debian calls the packages {packages}) and run the same command again."
        )
    return (
        f"{what} missing ({names}): run `sudo apt-get install {packages}` and then the same "
        "command again."
    )


def _apt_install(packages: list[str]) -> None:
    """apt-get install; the package lists are fetched when there are none, or too old ones."""
    if not _has_lists():
        _apt("update")
    if _apt("install", *packages) == 0:
        return
    say("Fetching newer package lists and trying once more")
    _apt("update")
    if _apt("install", *packages) != 0:
        raise SetupError(
            f"apt-get could not install {' '.join(packages)}: check the network and the disk, run "
            f"`apt-get update && apt-get install {' '.join(packages)}` and then the same command "
            "again."
        )


def _has_lists(folder: str = "/var/lib/apt/lists") -> bool:
    return any(Path(folder).glob("*_Packages*"))


def _apt(verb: str, *packages: str) -> int:
    """One apt-get call without questions; waits up to a minute for another one to end."""
    options = ["-y", "-q", "--no-install-recommends"] if verb == "install" else ["-q"]
    command = ["apt-get", "-o", "DPkg::Lock::Timeout=60", verb, *options, *packages]
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL).returncode
