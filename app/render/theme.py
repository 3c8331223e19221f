"""Theme: colours, fonts and sizes read from `resources/tokens.json`, and who swaps them.

Nothing else in the application names a colour or a size. A painter asks `theme()` for the
present one; `ThemeManager` replaces it, the palette and the one style sheet together.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from PySide6.QtCore import QObject, Qt, QTemporaryDir, Signal, Slot
from PySide6.QtGui import QColor, QFont, QFontDatabase, QGuiApplication, QPalette
from PySide6.QtWidgets import QApplication

from app.render.resources import RESOURCES, icon_svg, tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ThemeName = Literal["light", "dark"]
ThemeChoice = Literal["system", "light", "dark"]
OWNER_COLOURS = 24
OWNER_NUMBERS = 64

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Theme:
    """One theme. `number` differs for every theme that was ever made: caches compare it."""

    name: ThemeName
    number: int
    high_contrast: bool
    _colours: Mapping[str, str]

    def color(self, path: str) -> QColor:
        """Colour at a dotted path of the tokens, as "text.primary" or "owner.3.active".

        Raises:
            KeyError: the tokens have no colour there.
        """
        return QColor(self._colours[path])

    def owner(self, number: int, tone: str) -> QColor:
        """Colour of an owner; tone is active, shared, cached, hover or one of those after on_."""
        return self.color(f"owner.{number % OWNER_COLOURS}.{tone}")

    def owner_name(self, number: int) -> str:
        """The name of an owner's colour, for screen readers: "azure"."""
        return str(tokens()[self.name]["owner"][number % OWNER_COLOURS]["name"])

    def font(self, kind: str, weight: str = "regular") -> QFont:
        """A font of kind small, base, large or code; weight regular, medium or semibold."""
        return QFont(_font(kind, weight))

    def line(self, kind: str) -> int:
        """Line height in px of a font kind."""
        return int(tokens()["type"][kind]["line"])

    def size(self, name: str) -> float:
        """A size in px, as size("icon"); radii as size("radius.card")."""
        group, _, rest = name.rpartition(".")
        return float(tokens()[group or "size"][rest])

    def space(self, index: int) -> int:
        """Spacing in px by its place in the scale 0, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48."""
        return int(tokens()["space"][index])


def make_theme(name: ThemeName, *, high_contrast: bool = False) -> Theme:
    """Build a theme of the tokens, with a number no theme had before."""
    colours = dict(_flat(tokens()[name], ""))
    if high_contrast:
        colours["hairline"] = colours["hairline_strong"] = colours["control_border"]
        for role in ("tertiary", "disabled", "placeholder"):
            colours[f"text.{role}"] = colours["text.secondary"]
    return Theme(name, next(_numbers), high_contrast, MappingProxyType(colours))


def _flat(node: Mapping[str, Any] | list[Any], prefix: str) -> Iterator[tuple[str, str]]:
    items = enumerate(node) if isinstance(node, list) else node.items()
    for key, value in items:
        if isinstance(value, str):
            yield f"{prefix}{key}", value
        else:
            yield from _flat(value, f"{prefix}{key}.")


@cache
def _font(kind: str, weight: str) -> QFont:
    kinds = tokens()["type"]
    font = QFont(kinds["mono" if kind == "code" else "ui"])
    font.setPixelSize(kinds[kind]["px"])
    font.setWeight(QFont.Weight(kinds["weight"][weight]))
    if kind == "code":
        font.setStyleHint(QFont.StyleHint.Monospace)
        for ligatures in ("liga", "calt"):  # JetBrains Mono joins "->" through calt
            font.setFeature(QFont.Tag(ligatures), 0)
    else:
        font.setStyleHint(QFont.StyleHint.SansSerif)
        font.setFeature(QFont.Tag("tnum"), 1)
    return font


class _Current:
    """Holds the theme in use; light until a manager says otherwise."""

    theme: Theme | None = None


def theme() -> Theme:
    """The theme in use. Painters ask each time; what they cache carries its `number`."""
    if _Current.theme is None:
        _Current.theme = make_theme("light")
    return _Current.theme


def load_fonts() -> list[str]:
    """Register the bundled fonts with Qt. Returns the families; needs a QGuiApplication."""
    families: list[str] = []
    for path in sorted((RESOURCES / "fonts").glob("*.[ot]tf")):
        font_id = QFontDatabase.addApplicationFont(str(path))
        families += QFontDatabase.applicationFontFamilies(font_id) if font_id >= 0 else []
    return families


def palette_of(theme: Theme) -> QPalette:
    """The QPalette for a theme: what Fusion draws where the style sheet says nothing."""
    role = QPalette.ColorRole
    colours = {
        role.Window: "background.chrome",
        role.WindowText: "text.primary",
        role.Base: "background.content",
        role.AlternateBase: "background.fill",
        role.Text: "text.primary",
        role.Button: "background.content",
        role.ButtonText: "text.primary",
        role.BrightText: "error.base",
        role.Highlight: "accent.soft",
        role.HighlightedText: "text.primary",
        role.PlaceholderText: "text.placeholder",
        role.Accent: "accent.base",
        role.Link: "accent.base",
        role.LinkVisited: "accent.base",
        role.ToolTipBase: "popup",
        role.ToolTipText: "text.primary",
        role.Light: "background.content",
        role.Midlight: "background.fill",
        role.Mid: "hairline_strong",
        role.Dark: "control_border",
        role.Shadow: "hairline_strong",
    }
    palette = QPalette()
    for one, path in colours.items():
        palette.setColor(one, theme.color(path))
    off = QPalette.ColorGroup.Disabled
    for one in (role.WindowText, role.Text, role.ButtonText, role.HighlightedText):
        palette.setColor(off, one, theme.color("text.disabled"))
    palette.setColor(off, role.Base, theme.color("background.fill"))
    palette.setColor(off, role.Button, theme.color("background.fill"))
    palette.setColor(off, role.Highlight, theme.color("background.fill"))
    return palette


def style_sheet(theme: Theme, folder: Path) -> str:
    """`resources/style.qss` with every `$(path)` replaced by a colour or size of the theme.

    Style sheets read images from files only: `$(icon.name)` is written into `folder` in the
    theme's colour and replaced by its address.
    """

    def value(match: re.Match[str]) -> str:
        group, _, name = match[1].partition(".")
        if group in ("size", "radius"):
            return f"{theme.size(match[1]):g}px"
        if group == "icon":
            colour = theme.color("accent.on" if name == "check" else "text.secondary").name()
            path = folder / f"{name}-{theme.name}.svg"
            path.write_text(icon_svg(name, colour, 2.5), encoding="utf-8")
            return f'url("{path.as_posix()}")'
        return theme.color(match[1]).name()

    text = (RESOURCES / "style.qss").read_text(encoding="utf-8")
    return re.sub(r"\$\(([\w.-]+)\)", value, text)


class ThemeManager(QObject):
    """Puts a theme on the application: fonts, palette, style sheet.

    Signals:
        changed: `theme()` is a new one; palette and style sheet have been set.
    """

    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._choice: ThemeChoice = "system"
        self._images = QTemporaryDir()
        self.families = load_fonts()
        hints = QGuiApplication.styleHints()
        hints.colorSchemeChanged.connect(self._follow_system)
        hints.accessibility().contrastPreferenceChanged.connect(self._apply_again)
        self._apply()

    @property
    def current(self) -> Theme:
        return theme()

    @property
    def choice(self) -> ThemeChoice:
        return self._choice

    def set_choice(self, choice: ThemeChoice) -> None:
        """Follow the system or force one theme.

        Raises:
            ValueError: the choice is none of system, light, dark.
        """
        if choice not in ("system", "light", "dark"):
            raise ValueError(f"theme is {choice!r}, allowed: system, light, dark")
        self._choice = choice
        if self._wanted() != (theme().name, theme().high_contrast):
            self._apply()

    def _wanted(self) -> tuple[ThemeName, bool]:
        hints = QGuiApplication.styleHints()
        name: ThemeName = "light"
        if self._choice != "system":
            name = self._choice
        elif hints.colorScheme() == Qt.ColorScheme.Dark:
            name = "dark"
        high = Qt.ContrastPreference.HighContrast
        return name, hints.accessibility().contrastPreference() == high

    @Slot()
    def _follow_system(self) -> None:
        if self._choice == "system":
            self.set_choice("system")

    @Slot()
    def _apply_again(self) -> None:
        self.set_choice(self._choice)

    def _apply(self) -> None:
        name, high_contrast = self._wanted()
        _Current.theme = make_theme(name, high_contrast=high_contrast)
        app = QApplication.instance()
        if isinstance(app, QApplication):
            app.setFont(_font("base", "regular"))
            app.setPalette(palette_of(_Current.theme))
            app.setStyleSheet(style_sheet(_Current.theme, Path(self._images.path())))
        self.changed.emit()
