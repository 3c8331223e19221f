"""BlockCard: what the pointer finds in the grid, and CardKeeper, which shows it in time."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, QPoint, QRect, QSize, Qt, QTimer, Slot
from PySide6.QtGui import QFont, QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QFrame, QWidget

from app.render.chip import paint_chip, paint_state
from app.render.figures import count_text
from app.render.resources import tokens
from app.render.theme import theme
from app.state.pool import BlockFacts, PoolModel
from engine.messages import BlockState

STATE_WORDS = {
    BlockState.FREE: "Free",
    BlockState.CACHED: "Cached",
    BlockState.ACTIVE: "Active, one owner",
    BlockState.SHARED: "Shared",
}
WIDTH = 288
PADDING = 12
ROW = 20
HEAD = 22
DISTANCE = 6  # from the block


class BlockCard(QFrame):
    """A popup inside the window, never over the block it describes."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setProperty("kind", "popup")
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self._title = ""
        self._state_text = ""
        self._chip: tuple[int | None, BlockState, float] = (None, BlockState.FREE, 0.0)
        self._rows: list[tuple[str, str]] = []
        self._is_cell = False
        self.hide()

    @property
    def text(self) -> str:
        """All words on the card, for screen readers and tests."""
        lines = [f"{self._title}, {self._state_text}"]
        return "\n".join(lines + [f"{name}: {value}" for name, value in self._rows])

    def set_block(self, facts: BlockFacts, title: str) -> None:
        """Describe one block; `title` names the chat that has or had it."""
        self._title = f"Block {count_text(facts.number)}"
        self._state_text = STATE_WORDS[facts.state]
        share = facts.filled / facts.block_tokens if facts.block_tokens else 0.0
        self._chip = (facts.owner, facts.state, share)
        self._rows = []
        self._is_cell = False
        if facts.owner is not None:
            name = "Last chat" if facts.state == BlockState.CACHED else "Chat"
            filled = f"{facts.filled} of {facts.block_tokens} slots"
            self._rows = [(name, title), ("Filled", filled)]
            if facts.num_groups > 1:
                self._rows.append(
                    ("Layers", f"layer group {facts.group + 1} of {facts.num_groups}")
                )
        self._fit()

    def set_cell(self, blocks: range, owners: list[tuple[int, str, int]]) -> None:
        """Describe a cell of the overview: (owner, title, blocks), the largest first."""
        self._title = f"Blocks {count_text(blocks.start)} – {count_text(blocks.stop - 1)}"  # noqa: RUF001
        held = sum(num for _, _, num in owners)
        self._state_text = f"{count_text(held)} of {count_text(len(blocks))} held"
        self._chip = (owners[0][0] if owners else None, BlockState.ACTIVE, 1.0)
        if not owners:
            self._chip = (None, BlockState.FREE, 0.0)
        self._is_cell = True
        self._rows = [(title, count_text(num)) for _, title, num in owners[:6]]
        self._fit()

    def place_beside(self, block: QRect) -> None:
        """Below the block (rectangle in the parent's coordinates), above it without room."""
        parent = self.parentWidget()
        assert parent is not None
        area = parent.rect()
        x = min(max(block.left() - PADDING, area.left() + 4), area.right() - self.width() - 3)
        y = block.bottom() + DISTANCE
        if y + self.height() > area.bottom() - 3:
            y = block.top() - DISTANCE - self.height()
        self.move(QPoint(max(x, area.left()), y))

    def sizeHint(self) -> QSize:
        rows = len(self._rows) * ROW
        return QSize(WIDTH, 2 * PADDING + HEAD + (rows + 6 if rows else 0))

    def _fit(self) -> None:
        self.setAccessibleName(self.text)
        self.resize(self.sizeHint())
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        painter = QPainter(self)
        head = QRect(PADDING, PADDING, self.width() - 2 * PADDING, HEAD)
        self._paint_chip(painter, head)
        words = head.adjusted(20, 0, 0, 0)
        flags = Qt.AlignmentFlag.AlignVCenter
        self._write(painter, words, self._title, "base", "text.primary", flags, "semibold")
        right = flags | Qt.AlignmentFlag.AlignRight
        self._write(painter, words, self._state_text, "small", "text.tertiary", right)
        for number, (name, value) in enumerate(self._rows):
            row = QRect(head.left(), head.bottom() + 7 + number * ROW, head.width(), ROW)
            self._paint_row(painter, row, name, value)

    def _paint_row(self, painter: QPainter, row: QRect, name: str, value: str) -> None:
        """A pair of words: for a block the label is narrow, in a cell the chat's title is wide."""
        flags = Qt.AlignmentFlag.AlignVCenter
        if not self._is_cell:
            self._write(painter, row, name, "small", "text.secondary", flags)
            row = row.adjusted(72, 0, 0, 0)
            self._write(painter, row, value, "small", "text.primary", flags)
            return
        left = row.adjusted(0, 0, -56, 0)
        self._write(painter, left, name, "small", "text.primary", flags)
        right = flags | Qt.AlignmentFlag.AlignRight
        self._write(painter, row, value, "small", "text.secondary", right)

    def _paint_chip(self, painter: QPainter, head: QRect) -> None:
        owner, state, share = self._chip
        at = QRect(head.left(), head.top(), 12, head.height())
        if owner is None:
            paint_state(painter, at, "free")
        elif state == BlockState.SHARED:
            paint_chip(painter, at, owner, "shared")
        else:
            is_cached = state == BlockState.CACHED
            paint_chip(painter, at, owner, "cached" if is_cached else "active", share)

    def _write(
        self,
        painter: QPainter,
        rect: QRect,
        text: str,
        kind: str,
        colour: str,
        flags: Qt.AlignmentFlag,
        weight: str = "regular",
    ) -> None:
        font: QFont = theme().font(kind, weight)
        painter.setFont(font)
        painter.setPen(theme().color(colour))
        elided = QFontMetrics(font).elidedText(text, Qt.TextElideMode.ElideRight, rect.width())
        painter.drawText(rect, flags, elided)


class CardKeeper(QObject):
    """Shows the card a moment after the pointer came to rest, and takes it away."""

    def __init__(self, grid: QWidget, pool: PoolModel, title_of: Callable[[int], str]) -> None:
        super().__init__(grid)
        self._grid = grid
        self._pool = pool
        self._title_of = title_of
        self._blocks = range(0)
        self._rect = QRect()
        self.card: BlockCard | None = None  # made when it is first shown
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.setInterval(int(tokens()["motion"]["hover_card_delay_ms"]))
        self._timer.timeout.connect(self._show)

    @property
    def is_shown(self) -> bool:
        return self.card is not None and self.card.isVisible()

    def point_at(self, blocks: range, rect: QRect) -> None:
        """The pointer is over these blocks, drawn at `rect` of the grid; none: hide."""
        self._blocks, self._rect = blocks, QRect(rect)
        self._timer.stop()
        if not blocks:
            if self.card is not None:
                self.card.hide()
        elif self.is_shown:
            self._show()  # open already: it follows at once
        else:
            self._timer.start()

    def refresh(self) -> None:
        """The pool changed: so may have what the card says."""
        if self.card is not None and self.is_shown and self._blocks:
            if self._blocks.stop > self._pool.num_blocks:
                self.point_at(range(0), QRect())
            else:
                self._fill(self.card)

    @Slot()
    def _show(self) -> None:
        if not self._blocks or not self._grid.isVisible():
            return
        window = self._grid.window()
        if self.card is None or self.card.parentWidget() is not window:
            if self.card is not None:
                self.card.deleteLater()
            self.card = BlockCard(window)
        self._fill(self.card)
        corner = self._grid.mapTo(window, self._rect.topLeft())
        self.card.place_beside(QRect(corner, self._rect.size()))
        self.card.show()
        self.card.raise_()

    def _fill(self, card: BlockCard) -> None:
        if len(self._blocks) > 1:
            rows = self._pool.owners_in(self._blocks)
            card.set_cell(self._blocks, [(one, self._title_of(one), num) for one, num in rows])
            return
        facts = self._pool.block(self._blocks.start)
        card.set_block(facts, self._title_of(facts.owner) if facts.owner is not None else "")
