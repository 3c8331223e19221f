"""What stands on top of the tiles: block numbers, and the small map that shows where one is."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PySide6.QtCore import QPoint, QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QFontMetricsF, QImage, QPainter, QPen

from app.render.figures import count_text
from app.render.grid_painter import TONES, GridPicture
from app.render.resources import tokens
from app.state.pool import DIMMED_INDEX, NUM_STATES, WELL_INDEX

MAP_SIDE = 96  # px, the larger side of the map of the view
MAP_INSET = 8  # px from the corner


def paint_numbers(
    painter: QPainter,
    picture: GridPicture,
    index: npt.NDArray[np.uint8],
    cells: QRect,
    corner: QPointF,
) -> None:
    """Write the number of each block in view (device px, `corner` is that of the first cell)."""
    layout, theme = picture.layout, picture.theme
    if layout.pitch < tokens()["panel"]["number_from_pitch"]:
        return
    font = theme.font("small")
    font.setPixelSize(round(font.pixelSize() * layout.ratio))
    painter.setFont(font)
    metrics = QFontMetricsF(font)
    room = layout.cell - layout.gap - 4 * layout.ratio
    for row in range(cells.height()):
        for column in range(cells.width()):
            block = (cells.top() + row) * layout.columns + cells.left() + column
            if block >= layout.num_blocks:
                return
            text = count_text(block)
            if metrics.horizontalAdvance(text) > room:
                text = str(block)
            left = corner.x() + column * layout.cell + max(2, layout.cell // 11)
            base = corner.y() + row * layout.cell + metrics.ascent() + layout.cell // 12
            painter.setPen(_ink(picture, int(index[block])))
            painter.drawText(QPointF(left, base), text)


def _ink(picture: GridPicture, value: int) -> QPen:
    owner, state = divmod(value, NUM_STATES)
    if not state:
        return QPen(picture.theme.color("text.tertiary"))
    return QPen(picture.theme.owner(owner, f"on_{TONES[state]}"))


def paint_map_of_view(
    painter: QPainter,
    picture: GridPicture,
    index: npt.NDArray[np.uint8],
    view: QSize,
    offset: QPoint,
) -> None:
    """Draw the whole pool small in the lower right corner, with a frame around the view."""
    layout, theme, ratio = picture.layout, picture.theme, picture.layout.ratio
    whole = QSize(layout.columns * layout.cell, layout.rows * layout.cell)
    small = whole.scaled(
        round(MAP_SIDE * ratio), round(MAP_SIDE * ratio), Qt.AspectRatioMode.KeepAspectRatio
    )
    inset = round(MAP_INSET * ratio)
    place = QRect(
        view.width() - inset - small.width(),
        view.height() - inset - small.height(),
        small.width(),
        small.height(),
    )
    line = max(1, round(ratio))
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
    frame = place.adjusted(-line, -line, line, line)
    painter.fillRect(frame, theme.color("hairline_strong"))
    painter.drawImage(place, _small_image(picture, index))
    scale = small.width() / whole.width()
    seen = QRectF(
        place.x() + offset.x() * scale,
        place.y() + offset.y() * scale,
        min(view.width() * scale, small.width()),
        min(view.height() * scale, small.height()),
    )
    painter.setPen(QPen(theme.color("text.primary"), line))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawRect(seen.adjusted(line / 2, line / 2, -line / 2, -line / 2))


def _small_image(picture: GridPicture, index: npt.NDArray[np.uint8]) -> QImage:
    """One pixel a cell."""
    layout = picture.layout
    if layout.blocks_per_cell > 1:
        index = np.where(index == DIMMED_INDEX, 0, index)[:: layout.blocks_per_cell]
    size = layout.columns * layout.rows
    whole = np.pad(index, (0, size - len(index)), constant_values=WELL_INDEX).astype(np.uint8)
    image = QImage(
        whole.tobytes(), layout.columns, layout.rows, layout.columns, QImage.Format.Format_Indexed8
    )
    image.setColorTable(picture.table)
    return image.copy()
