"""Icons: bundled Lucide outlines, drawn in a colour of the theme and cached per theme."""

from __future__ import annotations

from PySide6.QtCore import QByteArray, QRectF, Qt
from PySide6.QtGui import QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

from app.render.resources import icon_svg
from app.render.theme import theme

DEVICE_PIXEL_RATIOS = (1.0, 1.5, 2.0)

# One entry per (name, colour path, px, ratio), all of the theme `_cache_number` names.
_pixmaps: dict[tuple[str, str, int, float], QPixmap] = {}
_icons: dict[tuple[str, str, int], QIcon] = {}
_cache_number = 0


def pixmap(
    name: str, color: str = "text.secondary", px: int = 16, device_pixel_ratio: float = 1.0
) -> QPixmap:
    """The icon `name` in the colour at a path of the tokens, `px` device-independent pixels wide.

    Raises:
        FileNotFoundError: no such icon is bundled.
    """
    _forget_old_theme()
    key = (name, color, px, device_pixel_ratio)
    if key not in _pixmaps:
        _pixmaps[key] = _render(name, color, px, device_pixel_ratio)
    return _pixmaps[key]


def icon(name: str, color: str = "text.secondary", px: int = 16) -> QIcon:
    """A QIcon of the present theme; ask again after `ThemeManager.changed`.

    Under the pointer a secondary icon takes the primary text colour, disabled ones fade.
    """
    _forget_old_theme()
    key = (name, color, px)
    if key not in _icons:
        _icons[key] = _build(name, color, px)
    return _icons[key]


def _build(name: str, color: str, px: int) -> QIcon:
    colours = {
        QIcon.Mode.Normal: color,
        QIcon.Mode.Active: "text.primary" if color == "text.secondary" else color,
        QIcon.Mode.Selected: color,
        QIcon.Mode.Disabled: "control_border",
    }
    built = QIcon()
    for mode, path in colours.items():
        for ratio in DEVICE_PIXEL_RATIOS:
            built.addPixmap(pixmap(name, path, px, ratio), mode)
    return built


def _render(name: str, color: str, px: int, ratio: float) -> QPixmap:
    now = theme()
    svg = icon_svg(name, now.color(color).name(), now.size("icon_stroke"))
    side = round(px * ratio)
    drawn = QPixmap(side, side)
    drawn.fill(Qt.GlobalColor.transparent)
    painter = QPainter(drawn)
    QSvgRenderer(QByteArray(svg.encode())).render(painter, QRectF(0, 0, side, side))
    painter.end()
    drawn.setDevicePixelRatio(ratio)
    return drawn


def _forget_old_theme() -> None:
    global _cache_number
    if _cache_number != theme().number:
        _cache_number = theme().number
        _pixmaps.clear()
        _icons.clear()
