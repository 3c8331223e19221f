"""Chip: one tile of the mosaic, 12 px, that stands before a chat's title everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from PySide6.QtCore import QPoint, QPointF, QRect, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPainterPath, QPen, QPixmap

from app.render.theme import OWNER_COLOURS, OWNER_NUMBERS, theme

ChipState = Literal["none", "cached", "active", "shared"]
PoolState = Literal["free", "cached", "active", "shared"]
CHIP_PX = 12
CUT_SHARE = 0.36  # of the side: the corner that a shared block lacks
FILL_STEPS = 16

_pixmaps: dict[tuple[object, ...], QPixmap] = {}
_cache_number = 0


@dataclass(frozen=True, slots=True)
class _Look:
    """Colours of one chip; `level` is how much of it `body` fills, from the bottom."""

    body: QColor
    rest: QColor
    border: QColor
    mark: QColor
    level: float = 1.0
    is_cut: bool = False
    pattern: int = 0


def paint_chip(
    painter: QPainter,
    at: QPoint | QPointF | QRect | QRectF,
    owner: int | None,
    state: ChipState,
    fill: float = 1.0,
) -> None:
    """Draw a chat's chip at a top left corner, or in the middle of a rectangle.

    `fill` (0 to 1) is the written part of the block being written; it counts while active.
    """
    steps = round(min(max(fill, 0.0), 1.0) * FILL_STEPS) if state == "active" else FILL_STEPS
    if owner is None:
        owner, state = 0, "none"
    _paint_cached(painter, at, ("chip", owner % OWNER_NUMBERS, state, steps))


def paint_state(painter: QPainter, at: QPoint | QPointF | QRect | QRectF, state: PoolState) -> None:
    """Draw the grey glyph of a pool state, as figures and charts use it."""
    _paint_cached(painter, at, ("state", 0, state, FILL_STEPS))


def tile_path(rect: QRectF, radius: float, is_cut: bool) -> QPainterPath:
    """Outline of a tile: a rounded square, without its top right corner when shared."""
    path = QPainterPath()
    path.addRoundedRect(rect, radius, radius)
    if is_cut:
        side = rect.width() * CUT_SHARE
        corner = QPainterPath(rect.topRight() - QPointF(side, 0))
        corner.lineTo(rect.topRight())
        corner.lineTo(rect.topRight() + QPointF(0, side))
        corner.closeSubpath()
        path = path.subtracted(corner)
    return path


def paint_pattern(painter: QPainter, rect: QRectF, pattern: int, colour: QColor) -> None:
    """Draw the mark of owners from 24 (1, a diagonal stripe) and from 48 (2, a dot)."""
    side = rect.width()
    if pattern == 1:
        painter.setPen(QPen(colour, max(1.0, side / 9)))
        painter.drawLine(rect.bottomLeft(), rect.topRight())
    elif pattern == 2:
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(colour)
        painter.drawEllipse(rect.center(), max(1.0, side / 6.5), max(1.0, side / 6.5))


def pattern_of(owner: int) -> int:
    """Which mark an owner number carries: 0 none, 1 stripe, 2 dot."""
    return owner % OWNER_NUMBERS // OWNER_COLOURS


def _paint_cached(
    painter: QPainter, at: QPoint | QPointF | QRect | QRectF, what: tuple[str, int, str, int]
) -> None:
    global _cache_number
    if _cache_number != theme().number:
        _cache_number = theme().number
        _pixmaps.clear()
    ratio = painter.device().devicePixelRatioF()
    key = (*what, ratio)
    if key not in _pixmaps:
        _pixmaps[key] = _render(what, ratio)
    if isinstance(at, (QRect, QRectF)):
        middle = QRectF(at).center()
        at = QPointF(round(middle.x() - CHIP_PX / 2), round(middle.y() - CHIP_PX / 2))
    painter.drawPixmap(QPointF(at), _pixmaps[key])


def _render(what: tuple[str, int, str, int], ratio: float) -> QPixmap:
    kind, owner, state, steps = what
    look = _chip_look(owner, state, steps) if kind == "chip" else _state_look(state)
    side = round(CHIP_PX * ratio)
    pixmap = QPixmap(side, side)
    pixmap.fill(Qt.GlobalColor.transparent)
    pixmap.setDevicePixelRatio(ratio)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    _draw(painter, look)
    painter.end()
    return pixmap


def _chip_look(owner: int, state: str, steps: int) -> _Look:
    now = theme()
    if state == "none":
        clear = QColor(Qt.GlobalColor.transparent)
        return _Look(clear, clear, now.color("hairline_strong"), clear)
    tone = {
        name: now.owner(owner, name)
        for name in ("active", "cached", "shared", "on_active", "on_cached", "on_shared")
    }
    pattern = pattern_of(owner)
    if state == "shared":
        shared = tone["shared"]
        return _Look(shared, shared, shared, tone["on_shared"], is_cut=True, pattern=pattern)
    level = steps / FILL_STEPS if state == "active" else 0.0
    mark = tone["on_active" if level >= 0.5 else "on_cached"]
    return _Look(tone["active"], tone["cached"], tone["active"], mark, level, pattern=pattern)


def _state_look(state: str) -> _Look:
    now = theme()
    body = now.color(f"state_glyph.{state}")
    border = {
        "free": now.color("hairline_strong"),
        "cached": now.color("state_glyph.active"),
    }.get(state, body)
    return _Look(body, body, border, body, is_cut=state == "shared")


def _draw(painter: QPainter, look: _Look) -> None:
    radius = theme().size("radius.chip")
    square = QRectF(0, 0, CHIP_PX, CHIP_PX)
    outline = tile_path(square.adjusted(0.5, 0.5, -0.5, -0.5), radius, look.is_cut)
    painter.fillPath(outline, look.rest)
    if look.level > 0:
        painter.save()
        painter.setClipRect(square.adjusted(0, CHIP_PX * (1 - look.level), 0, 0))
        painter.fillPath(outline, look.body)
        painter.restore()
    if look.pattern:
        painter.save()
        painter.setClipPath(outline)
        paint_pattern(painter, square.adjusted(1, 1, -1, -1), look.pattern, look.mark)
        painter.restore()
    painter.strokePath(outline, QPen(look.border, 1))
