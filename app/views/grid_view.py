"""GridView: which part of the grid a widget shows. Owns zoom and pan; paints nothing."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QPointF, QRect, QRectF, QSize, Qt

from app.render.grid_layout import GridLayout, fit_layout, next_zoom, pitch_for_width
from app.render.resources import tokens

MARGIN = 2  # px around the tiles, so that the ring of an outer tile is not cut


class GridView:
    """A window of `size` device px at `offset` in the whole grid.

    Points and rectangles that come in or go out are the widget's own coordinates, margin
    included; offset and corners are device px.
    """

    def __init__(self) -> None:
        self.base_columns = int(tokens()["panel"]["columns"])
        self.layout = GridLayout(0, self.base_columns, 6)
        self.offset = QPoint()
        self.size = QSize()
        self.ratio = 1.0
        self.is_zoomed = False  # the user chose the zoom; else what fits
        self._fit_pitch = 6

    def resize(self, size: QSize, ratio: float) -> None:
        """Take the size of the widget (device-independent px) and its pixel ratio."""
        self.ratio = ratio
        width, height = size.width() - 2 * MARGIN, size.height() - 2 * MARGIN
        self.size = QSize(max(0, int(width * ratio)), max(0, int(height * ratio)))
        self._clamp()

    # --- zoom -------------------------------------------------------------------------------

    def fit(self, num_blocks: int, panel_width: float, max_height: float) -> int:
        """Choose the layout that fits; returns the height it takes, margins included.

        With a zoom the user chose the layout stays, and only the height is answered.
        """
        self._fit_pitch = pitch_for_width(panel_width)
        width = self._fit_pitch * self.base_columns
        room = max_height - 2 * MARGIN
        # Without a pool the place of an ordinary one is kept, so that nothing jumps later.
        shown = num_blocks or self.base_columns**2
        fitting = fit_layout(shown, self._fit_pitch, width, room, self.ratio)
        height = min(fitting.height, room)
        if not num_blocks:
            fitting = GridLayout(0, self.base_columns, self._fit_pitch, self.ratio)
        if not self.is_zoomed:
            self.layout = fitting
            self._clamp()
        return int(height) + 2 * MARGIN

    def zoom(self, step: int, spot: QPointF, num_blocks: int) -> None:
        """One zoom step in (1) or out (-1) about a point; where the fit lies, out ends there."""
        if self.layout.level == "overview":
            if step > 0:
                self.zoom_to(next_zoom(2, 1), spot, num_blocks)
            return
        pitch = next_zoom(self.layout.pitch, step)
        wide = self.layout.columns > self.base_columns
        if step < 0 and self.is_zoomed and pitch <= self._fit_pitch // (2 if wide else 1):
            self.is_zoomed = False
            self.offset = QPoint()
        elif step > 0 or self.layout.pitch > pitch:
            self.zoom_to(pitch, spot, num_blocks)

    def zoom_to(self, pitch: int, spot: QPointF, num_blocks: int) -> None:
        """Tiles of this pitch; the block under `spot` stays there."""
        old, columns = self.layout, self.layout.columns
        at = (spot - QPointF(MARGIN, MARGIN)) * self.ratio
        x = (self.offset.x() + at.x()) / old.cell
        y = (self.offset.y() + at.y()) / old.cell
        if old.level == "overview":
            columns = self.base_columns
            block = (int(y) * old.columns + int(x)) * old.blocks_per_cell
            x, y = block % columns + 0.5, block // columns + 0.5
        self.is_zoomed = True
        self.layout = GridLayout(num_blocks, columns, pitch, self.ratio)
        cell = self.layout.cell
        self.offset = QPoint(round(x * cell - at.x()), round(y * cell - at.y()))
        self._clamp()

    # --- pan --------------------------------------------------------------------------------

    @property
    def largest_offset(self) -> QPoint:
        width, height = self.layout.columns * self.layout.cell, self.layout.rows * self.layout.cell
        return QPoint(max(0, width - self.size.width()), max(0, height - self.size.height()))

    @property
    def can_pan(self) -> bool:
        return self.largest_offset != QPoint()

    def pan_by(self, dx: int, dy: int) -> bool:
        """Move by device px; returns whether anything moved."""
        before = QPoint(self.offset)
        self.offset += QPoint(dx, dy)
        self._clamp()
        return before != self.offset

    def bring_into_view(self, block: int) -> bool:
        """Pan so that a block is inside; returns whether anything moved."""
        corner = self.corner(self.layout.cell_of(block))
        cell = self.layout.cell
        dx = min(0, corner.x()) + max(0, corner.x() + cell - self.size.width())
        dy = min(0, corner.y()) + max(0, corner.y() + cell - self.size.height())
        return self.pan_by(round(dx), round(dy))

    def _clamp(self) -> None:
        most = self.largest_offset
        self.offset = QPoint(
            min(max(0, self.offset.x()), most.x()), min(max(0, self.offset.y()), most.y())
        )

    # --- places -----------------------------------------------------------------------------

    def cells_in_view(self) -> QRect:
        """Columns and rows that the view touches."""
        layout, size = self.layout, self.size
        if not layout.num_blocks or size.isEmpty():
            return QRect()
        left, top = self.offset.x() // layout.cell, self.offset.y() // layout.cell
        right = min(layout.columns - 1, (self.offset.x() + size.width() - 1) // layout.cell)
        bottom = min(layout.rows - 1, (self.offset.y() + size.height() - 1) // layout.cell)
        return QRect(QPoint(left, top), QPoint(right, bottom))

    def corner(self, cell: int) -> QPointF:
        """Top left of a cell in the view, device px."""
        return QPointF(*self.layout.corner_of(cell)) - QPointF(self.offset)

    def grid_rect(self) -> QRect:
        """The whole grid in the view, device px."""
        layout = self.layout
        whole = QSize(layout.columns * layout.cell, layout.rows * layout.cell)
        return QRect(-self.offset, whole)

    def cell_at(self, spot: QPointF) -> int:
        """The cell at a point of the widget; -1: none."""
        at = (spot - QPointF(MARGIN, MARGIN)) * self.ratio
        if not QRectF(0, 0, self.size.width(), self.size.height()).contains(at):
            return -1
        at = (at + QPointF(self.offset)) / self.ratio
        cell = self.layout.cell_at(at.x(), at.y())
        return -1 if cell is None else cell

    def rect_of(self, block: int) -> QRect:
        """Where a block lies in the widget."""
        corner = self.corner(self.layout.cell_of(block)) / self.ratio
        side = (self.layout.cell - self.layout.gap) / self.ratio
        return QRectF(corner.x() + MARGIN, corner.y() + MARGIN, side, side).toAlignedRect()

    def neighbour(self, block: int, key: int) -> int | None:
        """The block a key moves to from `block` (-1: none yet); None: not a key that moves.

        Up and down stay in the column, nothing passes the ends.
        """
        layout = self.layout
        last, step = layout.num_blocks - 1, layout.blocks_per_cell
        row = layout.columns * step
        screen = max(1, self.size.height() // layout.cell) * row
        moves = {
            Qt.Key.Key_Left: -step,
            Qt.Key.Key_Right: step,
            Qt.Key.Key_Up: -row,
            Qt.Key.Key_Down: row,
            Qt.Key.Key_PageUp: -screen,
            Qt.Key.Key_PageDown: screen,
        }
        if last < 0 or (key not in moves and key not in (Qt.Key.Key_Home, Qt.Key.Key_End)):
            return None
        if key == Qt.Key.Key_End:
            return last
        if key == Qt.Key.Key_Home or block < 0:
            return 0
        target = block + moves[Qt.Key(key)]
        if 0 <= target <= last or abs(target - block) < row:
            return min(max(target, 0), last)
        column = block % row
        return column if target < 0 else column + max(0, (last - column) // row) * row
