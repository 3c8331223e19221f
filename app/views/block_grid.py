"""BlockGrid: the pool as tiles, with zoom, pan, pointer and keyboard. Reads PoolModel."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QPoint, QPointF, QRect, QSize, Qt, Signal, Slot
from PySide6.QtGui import (
    QFocusEvent,
    QHideEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPixmap,
    QResizeEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QWidget

from app.render.figures import count_text
from app.render.grid_layout import GridLayout
from app.render.grid_marks import paint_map_of_view, paint_numbers
from app.render.grid_painter import GridPicture, paint_pointed, paint_written
from app.render.theme import theme
from app.state.pool import PoolModel
from app.views.block_card import STATE_WORDS, CardKeeper
from app.views.grid_view import MARGIN, GridView

DRAG_FROM_PX = 4  # less is a click


class BlockGrid(QWidget):
    """The grid of physical blocks.

    Signals:
        hovered(block): the block under the pointer (first of an overview's cell); -1: none.
        selected(block): the block chosen with a click or the keyboard; -1: none.
        owner_chosen(owner): its blocks alone are asked for (double click, Enter); -1: all.
        layout_changed: zoom or pool size are others; ask `height_for` again.
    """

    hovered = Signal(int)
    selected = Signal(int)
    owner_chosen = Signal(int)
    layout_changed = Signal()

    def __init__(
        self, pool: PoolModel, title_of: Callable[[int], str], parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self._pool = pool
        self._title_of = title_of
        self._view = GridView()
        self._hovered = -1  # a cell
        self._selected = -1  # a block
        self._pressed_at: QPoint | None = None
        self._is_dragging = False
        self._picture: GridPicture | None = None
        self._pixels: tuple[object, QPixmap] | None = None
        self._cards = CardKeeper(self, pool, title_of)
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setLayoutDirection(Qt.LayoutDirection.LeftToRight)  # memory is not mirrored
        self.setAccessibleName("Memory grid")
        self._describe()
        pool.changed.connect(self._on_pool)
        pool.filter_changed.connect(self.update)

    @property
    def view(self) -> GridView:
        return self._view

    @property
    def cards(self) -> CardKeeper:
        return self._cards

    @property
    def selected_block(self) -> int:
        """The selected block; -1: none."""
        return self._selected

    @property
    def hovered_block(self) -> int:
        """The block under the pointer, in the overview the first of its cell; -1: none."""
        return self._view.layout.blocks_of(self._hovered).start if self._hovered >= 0 else -1

    def height_for(self, panel_width: float, max_height: float) -> int:
        """Choose the zoom that fits a panel; returns the height that the grid then takes."""
        self._view.ratio = self.devicePixelRatioF()
        height = self._view.fit(self._pool.num_blocks, panel_width, max_height)
        self.update()
        return height

    def sizeHint(self) -> QSize:
        layout = self._view.layout
        return QSize(int(layout.width) + 2 * MARGIN, int(layout.height) + 2 * MARGIN)

    def zoom(self, step: int, about: QPointF | None = None) -> None:
        """One zoom step in (1) or out (-1), about a point (default: the middle)."""
        spot = QPointF(self.rect().center()) if about is None else about
        self._set_hovered(-1)
        self._view.zoom(step, spot, self._pool.num_blocks)
        self.update()
        self.layout_changed.emit()

    def select(self, block: int) -> None:
        """Put the ring on a block and bring it into view; -1 takes it away."""
        block = block if 0 <= block < self._pool.num_blocks else -1
        if block == self._selected:
            return
        self._selected = block
        if block >= 0:
            self._view.bring_into_view(block)
        self._describe()
        self.update()
        self.selected.emit(block)

    @Slot()
    def _on_pool(self) -> None:
        if self._view.layout.num_blocks != self._pool.num_blocks:
            self._view.is_zoomed = False
            self._set_hovered(-1)
            self.select(-1)
            self._describe()
            self.layout_changed.emit()
        self._cards.refresh()
        self.update()

    def _describe(self) -> None:
        """Tell screen readers the selected block, in words that need no colour."""
        if self._selected < 0:
            self.setAccessibleDescription(f"{count_text(self._pool.num_blocks)} blocks")
            return
        facts = self._pool.block(self._selected)
        words = [f"Block {count_text(facts.number)}", STATE_WORDS[facts.state]]
        if facts.owner is not None:
            words += [f"{self._title_of(facts.owner)} ({theme().owner_name(facts.owner)})"]
            words += [f"{facts.filled} of {facts.block_tokens} slots"]
        self.setAccessibleDescription(", ".join(words))

    # --- painting ---------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        view, cells = self._view, self._view.cells_in_view()
        if cells.isEmpty():
            return
        painter = QPainter(self)
        painter.translate(MARGIN, MARGIN)
        painter.scale(1 / view.ratio, 1 / view.ratio)
        picture = self._fresh_picture(view.layout)
        window = QRect(QPoint(0, 0), view.size)
        painter.setClipRect(window.intersected(view.grid_rect()))
        corner = view.corner(cells.top() * view.layout.columns + cells.left())
        painter.drawPixmap(corner, self._pixmap(picture, cells))
        index = self._pool.indexed_bytes()
        if view.layout.level == "blocks":
            paint_numbers(painter, picture, index, cells, corner)
        line = 2 * round(view.ratio)
        # Rings stand in the gaps, those of the outer tiles in the margin.
        painter.setClipRect(window.adjusted(-line, -line, line, line))
        self._paint_rings(painter, picture, cells)
        if view.can_pan:
            paint_map_of_view(painter, picture, index, view.size, view.offset)

    def _fresh_picture(self, layout: GridLayout) -> GridPicture:
        picture = self._picture
        if picture is None or (picture.theme.number, picture.layout) != (theme().number, layout):
            picture = self._picture = GridPicture(theme(), layout)
        return picture

    def _pixmap(self, picture: GridPicture, cells: QRect) -> QPixmap:
        """The tiles; kept until pool, filter, theme, zoom or view change: hover is on top."""
        key = (
            self._pool.version,
            self._pool.filter_owner,
            picture.theme.number,
            picture.layout,
            cells.getRect(),
        )
        if self._pixels is None or self._pixels[0] != key:
            image = picture.image(self._pool.indexed_bytes(), cells)
            self._pixels = (key, QPixmap.fromImage(image))
        return self._pixels[1]

    def _paint_rings(self, painter: QPainter, picture: GridPicture, cells: QRect) -> None:
        layout = picture.layout
        if layout.level != "overview":
            for number in self._pool.written():
                row, column = divmod(int(number), layout.columns)
                if cells.contains(column, row):
                    facts = self._pool.block(int(number))
                    share = facts.filled / facts.block_tokens
                    corner = self._view.corner(facts.number)
                    paint_written(painter, picture, corner, facts.owner or 0, share)
        index = self._pool.indexed_bytes()
        chosen = layout.cell_of(self._selected) if self._selected >= 0 else -1
        for cell, is_hovered in ((chosen, False), (self._hovered, True)):
            if 0 <= cell < layout.num_cells:
                value = int(index[layout.blocks_of(cell).start])
                corner = self._view.corner(cell)
                paint_pointed(painter, picture, corner, value, is_hovered=is_hovered)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._view.resize(event.size(), self.devicePixelRatioF())
        super().resizeEvent(event)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.PaletteChange:
            self.update()
        super().changeEvent(event)

    # --- pointer ----------------------------------------------------------------------------

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        spot = event.position().toPoint()
        if self._pressed_at is not None and self._view.can_pan:
            moved = spot - self._pressed_at
            if self._is_dragging or moved.manhattanLength() >= DRAG_FROM_PX:
                self._is_dragging = True
                self._pressed_at = spot
                self._pan(-moved.x(), -moved.y())
                self._set_hovered(-1)
                return
        self._set_hovered(self._view.cell_at(event.position()))

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() in (Qt.MouseButton.LeftButton, Qt.MouseButton.MiddleButton):
            self._pressed_at = event.position().toPoint()
            self._is_dragging = False

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        was_dragging = self._is_dragging
        self._pressed_at, self._is_dragging = None, False
        if not was_dragging and event.button() == Qt.MouseButton.LeftButton:
            cell = self._view.cell_at(event.position())
            self.select(self._view.layout.blocks_of(cell).start if cell >= 0 else -1)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        cell = self._view.cell_at(event.position())
        if cell >= 0:
            self._choose_owner(self._view.layout.blocks_of(cell).start)

    def leaveEvent(self, event: QEvent) -> None:
        self._set_hovered(-1)
        super().leaveEvent(event)

    def hideEvent(self, event: QHideEvent) -> None:
        self._set_hovered(-1)
        super().hideEvent(event)

    def wheelEvent(self, event: QWheelEvent) -> None:
        turned = event.angleDelta().y() or event.angleDelta().x()
        if event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            if turned:
                self.zoom(1 if turned > 0 else -1, event.position())
            event.accept()
        elif self._view.can_pan:
            pixels = event.pixelDelta()
            delta = event.angleDelta() if pixels.isNull() else pixels
            sideways = event.modifiers() & Qt.KeyboardModifier.ShiftModifier
            self._pan(*((-delta.y(), 0) if sideways else (-delta.x(), -delta.y())))
            event.accept()
        else:
            event.ignore()

    def _pan(self, dx: int, dy: int) -> None:
        """Device-independent px."""
        if self._view.pan_by(round(dx * self._view.ratio), round(dy * self._view.ratio)):
            self.update()

    def _set_hovered(self, cell: int) -> None:
        if cell == self._hovered:
            return
        self._hovered = cell
        blocks = self._view.layout.blocks_of(cell) if cell >= 0 else range(0)
        self._cards.point_at(blocks, self._view.rect_of(blocks.start) if blocks else QRect())
        self.update()
        self.hovered.emit(self.hovered_block)

    # --- keyboard ---------------------------------------------------------------------------

    def keyPressEvent(self, event: QKeyEvent) -> None:
        target = self._view.neighbour(self._selected, event.key())
        if target is not None:
            self.select(target)
        elif not self._other_key(event.key()):
            super().keyPressEvent(event)

    def _other_key(self, key: int) -> bool:
        """Keys that do not move; returns whether this one means something here."""
        if key in (Qt.Key.Key_Plus, Qt.Key.Key_Equal):
            self.zoom(1)
        elif key == Qt.Key.Key_Minus:
            self.zoom(-1)
        elif key == Qt.Key.Key_Escape and self._has_marks():
            self.select(-1)
            self.owner_chosen.emit(-1)
        elif self._selected < 0:
            return False
        elif key == Qt.Key.Key_N:
            following = self._pool.next_of_owner(self._selected)
            self.select(self._selected if following is None else following)
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._choose_owner(self._selected)
        else:
            return False
        return True

    def _has_marks(self) -> bool:
        return self._selected >= 0 or self._pool.filter_owner is not None

    def _choose_owner(self, block: int) -> None:
        owner = self._pool.block(block).owner
        if owner is not None:
            self.owner_chosen.emit(-1 if owner == self._pool.filter_owner else owner)

    def focusInEvent(self, event: QFocusEvent) -> None:
        tabs = (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason)
        if event.reason() in tabs and self._selected < 0:
            self.select(0)  # the ring shows where the keyboard is
        super().focusInEvent(event)
