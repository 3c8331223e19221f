"""MemoryNotes: the lines below the legend: what sharing saves, what is kept, what was copied."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QRect, QSize, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from app.render.chip import paint_state
from app.render.figures import count_text, memory_text
from app.render.icons import pixmap
from app.render.theme import theme
from app.state.pool import PoolModel
from app.views.legend import PADDING, ROW_PX, TITLE_AT

SHARED, PINNED, COPIED = "shared", "pin", "copy"  # what stands before a line


@dataclass(frozen=True, slots=True)
class Note:
    """One line and its mark: the glyph of shared blocks, or the name of an icon."""

    mark: str
    text: str


def notes_of(pool: PoolModel) -> list[Note]:
    """The lines that have something to say."""
    notes = []
    if saved := pool.num_saved_by_sharing:
        notes.append(Note(SHARED, f"Sharing saves {_blocks(saved, pool.block_bytes)}"))
    if pinned := pool.num_pinned:
        notes.append(Note(PINNED, f"{_blocks(pinned, pool.block_bytes)} kept in memory"))
    if copies := pool.num_copies:
        what = "shared block" if copies == 1 else "shared blocks"
        notes.append(Note(COPIED, f"{count_text(copies)} {what} copied to go separate ways"))
    return notes


def _blocks(number: int, block_bytes: int) -> str:
    noun = "block" if number == 1 else "blocks"
    return f"{count_text(number)} {noun}, {memory_text(number * block_bytes)}"


class MemoryNotes(QWidget):
    """Paints the lines, one below the other, as high as legend rows."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._notes: list[Note] = []
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)

    @property
    def texts(self) -> list[str]:
        return [note.text for note in self._notes]

    @property
    def wanted_height(self) -> int:
        return ROW_PX * len(self._notes)

    def set_notes(self, notes: list[Note]) -> None:
        if notes != self._notes:
            self._notes = notes
            self.setAccessibleName("; ".join(self.texts))
            self.update()

    def sizeHint(self) -> QSize:
        return QSize(384, self.wanted_height)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        font = theme().font("small")
        painter.setFont(font)
        for number, note in enumerate(self._notes):
            row = QRect(0, number * ROW_PX, self.width(), ROW_PX)
            self._paint_mark(painter, note.mark, row)
            room = row.adjusted(TITLE_AT, 0, -PADDING, 0)
            elide = Qt.TextElideMode.ElideRight
            words = QFontMetrics(font).elidedText(note.text, elide, room.width())
            painter.setPen(theme().color("text.secondary"))
            painter.drawText(room, Qt.AlignmentFlag.AlignVCenter, words)

    def _paint_mark(self, painter: QPainter, mark: str, row: QRect) -> None:
        if mark == SHARED:
            paint_state(painter, QRect(PADDING, row.top(), 12, row.height()), "shared")
            return
        picture = pixmap(mark, "text.secondary", 14, self.devicePixelRatioF())
        painter.drawPixmap(PADDING - 1, row.center().y() - 6, picture)
