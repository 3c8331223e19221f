"""GridPicture: turns the indexed bytes of the pool into pixels, one way for each zoom level.

All levels gather whole rows with numpy. A rectangle per block in Python would cost more than
a frame at 16,384 blocks; this takes a few milliseconds, and less for the part in view.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QPointF, QRect, QRectF, Qt
from PySide6.QtGui import QColor, QImage, QPainter, QPen

from app.render.chip import paint_pattern, pattern_of, tile_path
from app.render.grid_layout import GridLayout
from app.render.theme import OWNER_NUMBERS, Theme
from app.state.pool import DIMMED_INDEX, FREE_INDEX, NUM_STATES, WELL_INDEX

TONES = ("", "cached", "active", "shared")
OVERVIEW_STEPS = 4

Bytes = npt.NDArray[np.uint8]
Pixels = npt.NDArray[np.uint32]


def colour_table(theme: Theme) -> list[int]:
    """256 colours (0xAARRGGBB): entry (owner % 64) * 4 + state, see `app.state.pool`."""
    table = [theme.color("pool.free").rgb()] * (OWNER_NUMBERS * NUM_STATES)
    for owner in range(OWNER_NUMBERS):
        for state in (1, 2, 3):
            table[owner * NUM_STATES + state] = theme.owner(owner, TONES[state]).rgb()
    table[DIMMED_INDEX] = theme.color("pool.dimmed").rgb()
    table[WELL_INDEX] = theme.color("pool.well").rgb()
    return table


def tile_radius(theme: Theme, pitch: int) -> float:
    """Corner radius of a tile at a zoom step, device-independent px."""
    if pitch < 16:
        return theme.size("radius.tile_8")
    return theme.size("radius.tile_16" if pitch < 24 else "radius.tile_24")


@dataclass
class GridPicture:
    """Draws a part of the grid. Keeps the tiles it painted for one theme, zoom and ratio."""

    theme: Theme
    layout: GridLayout
    table: list[int] = field(init=False)
    _tiles: Pixels = field(init=False)  # [256, cell, cell]
    _has_tile: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.table = colour_table(self.theme)
        side = self.layout.cell if self.layout.level in ("tiles", "blocks") else 0
        self._tiles = np.zeros((len(self.table), side, side), np.uint32)
        self._has_tile = np.zeros(len(self.table), np.bool_)

    def image(self, index: Bytes, cells: QRect) -> QImage:
        """Pixels of the cells in a rectangle of columns and rows; `index` is one byte a block."""
        if self.layout.level == "overview":
            return self._overview(index, cells)
        part = self._part(index, cells)
        return self._map(part) if self.layout.level == "map" else self._tiled(part)

    def _part(self, cell_values: npt.NDArray, cells: QRect, empty: int = WELL_INDEX) -> npt.NDArray:
        """Values of the cells in view as [rows, columns]; places past the end are `empty`."""
        columns = self.layout.columns
        first, last = cells.top() * columns, (cells.bottom() + 1) * columns
        values = cell_values[first:last]
        if len(values) < last - first:
            values = np.pad(values, (0, last - first - len(values)), constant_values=empty)
        return values.reshape(-1, columns)[:, cells.left() : cells.right() + 1]

    def _map(self, part: Bytes) -> QImage:
        rows, columns = part.shape
        cell, gap = self.layout.cell, self.layout.gap
        pixels = np.empty((rows, cell, columns, cell), np.uint8)
        pixels[:] = part[:, None, :, None]
        pixels[:, cell - gap :] = WELL_INDEX
        pixels[..., cell - gap :] = WELL_INDEX
        if self.layout.pitch >= 5:  # notch_from_pitch: a shared block lacks its corner
            side = min(2 * gap, (cell - gap) // 2)  # never most of the tile
            corner = pixels[:, :side, :, cell - gap - side : cell - gap]
            is_shared = (part % NUM_STATES == 3)[:, None, :, None]
            np.copyto(corner, WELL_INDEX, where=is_shared)
        width, height = columns * cell, rows * cell
        image = QImage(pixels.tobytes(), width, height, width, QImage.Format.Format_Indexed8)
        image.setColorTable(self.table)
        return image.convertToFormat(QImage.Format.Format_RGB32)

    def _tiled(self, part: Bytes) -> QImage:
        for value in np.unique(part):
            if not self._has_tile[value]:
                self._tiles[value] = self._tile(int(value))
                self._has_tile[value] = True
        gathered = self._tiles[part]  # [rows, columns, cell, cell]
        rows, columns, cell, _ = gathered.shape
        return _to_image(gathered.transpose(0, 2, 1, 3).reshape(rows * cell, columns * cell))

    def _tile(self, value: int) -> Pixels:
        """One tile, painted once: [cell, cell] of 0xffRRGGBB."""
        layout, (owner, state) = self.layout, divmod(value, NUM_STATES)
        image = QImage(layout.cell, layout.cell, QImage.Format.Format_RGB32)
        image.fill(self.theme.color("pool.well"))
        if value != WELL_INDEX:
            painter = QPainter(image)
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            side = layout.cell - layout.gap
            rect = QRectF(0, 0, side, side)
            path = tile_path(rect, self._radius, state == 3)
            painter.fillPath(path, QColor.fromRgb(self.table[value]))
            painter.setClipPath(path)
            if state:
                mark = self.theme.owner(owner, f"on_{TONES[state]}")
                paint_pattern(painter, rect, pattern_of(owner), mark)
            elif self.theme.high_contrast:
                painter.strokePath(path, QPen(self.theme.color("control_border"), 2))
            painter.end()
        side = layout.cell
        return np.frombuffer(image.constBits(), np.uint32).reshape(side, side).copy()

    @property
    def _radius(self) -> float:
        return tile_radius(self.theme, self.layout.pitch) * self.layout.ratio

    def _overview(self, index: Bytes, cells: QRect) -> QImage:
        colours = self._part(self._cell_colours(index), cells, self.table[WELL_INDEX])
        rows, columns = colours.shape
        cell, gap = self.layout.cell, self.layout.gap
        pixels = np.empty((rows, cell, columns, cell), np.uint32)
        pixels[:] = colours[:, None, :, None]
        pixels[:, cell - gap :] = self.table[WELL_INDEX]
        pixels[..., cell - gap :] = self.table[WELL_INDEX]
        return _to_image(pixels.reshape(rows * cell, columns * cell))

    def _cell_colours(self, index: Bytes) -> Pixels:
        """Of every cell: colour of the owner with most blocks, tone of the commonest state,
        mixed with `pool.free` in four steps by the share that is not free."""
        num_cells, size = self.layout.num_cells, self.layout.blocks_per_cell
        cell = np.arange(len(index)) // size
        owner, state = index // NUM_STATES, index % NUM_STATES
        held = state > 0
        owners = _count(cell[held], owner[held], num_cells, OWNER_NUMBERS)
        states = _count(cell[held], state[held], num_cells, NUM_STATES)
        strongest = owners.argmax(1) * NUM_STATES + states.argmax(1)
        table = np.array(self.table, np.uint32).view(np.uint8).reshape(-1, 4).astype(np.float32)
        share = np.ceil(states.sum(1) / size * OVERVIEW_STEPS) / OVERVIEW_STEPS  # 0 to 1
        mixed = table[FREE_INDEX] * (1 - share[:, None]) + table[strongest] * share[:, None]
        is_dimmed = np.bincount(cell[index == DIMMED_INDEX], minlength=num_cells) > 0
        mixed[is_dimmed & (share == 0)] = table[DIMMED_INDEX]
        return np.ascontiguousarray(np.rint(mixed).astype(np.uint8)).view(np.uint32).ravel()


def paint_written(
    painter: QPainter, picture: GridPicture, corner: QPointF, owner: int, filled: float
) -> None:
    """Draw a block that is being written over its place (device px): its fill, and a ring.

    `filled` is the written part, 0 to 1; it shows from `fill_from_pitch` on.
    """
    layout, theme = picture.layout, picture.theme
    side = layout.cell - layout.gap
    rect = QRectF(corner.x(), corner.y(), side, side)
    ring, line = theme.color("pool.ring"), max(1, round(layout.ratio))
    if layout.level == "map":
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        for edge in _edges(rect, line):
            painter.fillRect(edge, ring)
        return
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    radius = tile_radius(theme, layout.pitch) * layout.ratio
    path = tile_path(rect, radius, is_cut=False)
    painter.fillPath(path, theme.owner(owner, "cached"))
    painter.save()
    painter.setClipRect(rect.adjusted(0, side * (1 - filled), 0, 0))
    painter.fillPath(path, theme.owner(owner, "active"))
    painter.restore()
    half = line / 2
    outline = tile_path(rect.adjusted(-half, -half, half, half), radius + half, is_cut=False)
    painter.strokePath(outline, QPen(ring, line))


def paint_pointed(
    painter: QPainter, picture: GridPicture, corner: QPointF, value: int, *, is_hovered: bool
) -> None:
    """Draw the ring of the block pointed at or selected, under the pointer in its hover tone."""
    layout, theme = picture.layout, picture.theme
    side, line = layout.cell - layout.gap, 2 * layout.ratio
    rect = QRectF(corner.x(), corner.y(), side, side)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, layout.pitch >= 8)
    radius = tile_radius(theme, layout.pitch) * layout.ratio if layout.pitch >= 8 else 0.0
    owner, state = divmod(value, NUM_STATES)
    if is_hovered and state and layout.level != "overview":
        tile = tile_path(rect, radius, state == 3)
        painter.fillPath(tile, theme.owner(owner, "hover"))
    if radius:
        grown = rect.adjusted(-line / 2, -line / 2, line / 2, line / 2)
        pen = QPen(theme.color("text.primary"), line)
        painter.setPen(pen)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRoundedRect(grown, radius + line / 2, radius + line / 2)
        return
    for edge in _edges(rect, round(line)):
        painter.fillRect(edge, theme.color("text.primary"))


def _edges(rect: QRectF, line: int) -> list[QRectF]:
    """Four bars around a rectangle, outside it: exact pixels, no smoothing."""
    x, y, side = rect.x(), rect.y(), rect.width()
    long = side + 2 * line
    return [
        QRectF(x - line, y - line, long, line),
        QRectF(x - line, y + side, long, line),
        QRectF(x - line, y, line, side),
        QRectF(x + side, y, line, side),
    ]


def _count(
    cell: npt.NDArray, value: npt.NDArray, num_cells: int, num_values: int
) -> npt.NDArray[np.intp]:
    """How often each value stands in each cell: [num_cells, num_values]."""
    flat = np.bincount(cell * num_values + value, minlength=num_cells * num_values)
    return flat.reshape(num_cells, num_values)


def _to_image(pixels: Pixels) -> QImage:
    height, width = pixels.shape
    data = np.ascontiguousarray(pixels).tobytes()
    # copy(): the image must not outlive the bytes it was made of.
    return QImage(data, width, height, 4 * width, QImage.Format.Format_RGB32).copy()
