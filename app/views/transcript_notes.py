"""Items without text of the chat: rules, and sentences about a reply with their icon."""

from __future__ import annotations

from PySide6.QtCore import QRectF
from PySide6.QtGui import QPainter, QTextCharFormat

from app.render.icons import icon
from app.render.markdown import RuleBlock
from app.render.plain import for_qt
from app.render.theme import theme
from app.views.transcript_items import (
    CARET_WIDTH,
    INDENT,
    QUOTE_INDENT,
    Item,
    Piece,
    Selected,
    format_range,
    lay_out,
    text_layout,
    units,
)


class RuleItem(Item):
    """A horizontal rule."""

    gap = 12

    def __init__(self, block: RuleBlock) -> None:
        super().__init__()
        self.block = block

    def _build(self, width: int) -> None:
        self.height = 9.0
        self._width = width

    def estimate(self, width: int) -> float:
        return 9.0

    def paint(self, painter: QPainter, clip: QRectF, selected: Selected | None) -> None:
        left = self.block.indent * INDENT + self.block.quote * QUOTE_INDENT
        painter.fillRect(QRectF(left, 4, self._width - left, 1), theme().color("hairline"))


class NoteItem(Item):
    """A sentence about a reply: what went wrong (with its icon), or what it waits for."""

    joint = "\n"

    def __init__(self, sentence: str, is_error: bool, has_button: bool = False) -> None:
        super().__init__()
        self.sentence = for_qt(sentence)
        self.is_error = is_error
        self.has_button = has_button  # a Retry button stands at its right end
        self.gap = 12 if is_error else 4

    def estimate(self, width: int) -> float:
        return 28.0 if self.is_error else 22.0

    def _build(self, width: int) -> None:
        look = theme()
        kind = "base" if self.is_error else "small"
        left = 24 if self.is_error else (CARET_WIDTH + 8 if self.show_caret else 0)
        font = look.font(kind, "regular")
        form = QTextCharFormat()
        form.setForeground(look.color("error.base" if self.is_error else "text.tertiary"))
        layout = text_layout(self.sentence, font)
        layout.setFormats([format_range(0, units(self.sentence), form)])
        room = width - left - (80 if self.has_button else 0)
        line = look.line(kind)
        count = lay_out(layout, room, line, font)
        self.pieces = [Piece(layout, left, 3, 0, 0)]
        self.height = count * line + 6

    def paint(self, painter: QPainter, clip: QRectF, selected: Selected | None) -> None:
        if self.is_error:
            mark = icon("triangle-alert", "error.base", 16)
            mark.paint(painter, 0, 6, 16, 16)
        caret, self.show_caret = self.show_caret, False
        super().paint(painter, clip, None)
        self.show_caret = caret
        if caret:
            box = QRectF(0, (self.height - 16) / 2, CARET_WIDTH, 16)
            painter.fillRect(box, theme().color("text.primary"))

    def hit(self, x: float, y: float) -> int:
        return 0
