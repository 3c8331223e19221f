"""A table: columns as wide as their text wants, narrowed together when the page is narrow."""

from __future__ import annotations

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QPainter, QTextOption

from app.render.markdown import Span, TableBlock
from app.render.plain import for_qt
from app.render.theme import theme
from app.views.transcript_items import (
    INDENT,
    QUOTE_INDENT,
    Item,
    Piece,
    Selected,
    SpanStyle,
    lay_out,
    text_layout,
    units,
)

COLUMN_GAP = 20
ROW_PAD = 6
MIN_COLUMN = 48
MAX_CELL_CHARS = 2000

_ALIGN = {
    "right": Qt.AlignmentFlag.AlignRight,
    "center": Qt.AlignmentFlag.AlignHCenter,
}


def column_widths(wanted: list[float], room: float) -> list[float]:
    """Share `room` among columns: small ones get what they want, wide ones what is left."""
    widths = [0.0] * len(wanted)
    left, open_columns = room, sorted(range(len(wanted)), key=lambda i: wanted[i])
    while open_columns:
        column = open_columns.pop(0)
        share = left / (len(open_columns) + 1)
        widths[column] = max(MIN_COLUMN, min(wanted[column], share))
        left -= widths[column]
    return widths


class TableItem(Item):
    """One table of a reply."""

    gap = 8

    def __init__(self, block: TableBlock) -> None:
        super().__init__()
        self._take(block)

    def _take(self, block: TableBlock) -> None:
        self.block = block
        rows = ([block.head] if block.head else []) + list(block.rows)
        self._cells = [
            [for_qt("".join(s.text for s in cell)[:MAX_CELL_CHARS]) for cell in row] for row in rows
        ]
        self._spans: list[tuple[tuple[Span, ...], ...]] = rows
        self.text = "\n".join("\t".join(row) for row in self._cells)
        self.length = units(self.text)

    def update(self, block: TableBlock) -> bool:
        if (block.indent, block.quote) != (self.block.indent, self.block.quote):
            return False
        self._take(block)
        self.invalidate()
        return True

    def estimate(self, width: int) -> float:
        return float(len(self._cells) * (theme().line("base") + 2 * ROW_PAD + 1))

    def _build(self, width: int) -> None:
        look = theme()
        left = self.block.indent * INDENT + self.block.quote * QUOTE_INDENT
        self._left, self._width = left, width - left
        self._row_ends: list[float] = []
        num_columns = max((len(row) for row in self._cells), default=0)
        wanted = [0.0] * num_columns
        laid: list[list[Piece]] = []
        offset = 0
        for number, row in enumerate(self._cells):
            weight = "semibold" if number == 0 and self.block.head else "regular"
            font = look.font("base", weight)
            pieces = []
            for column, text in enumerate(row):
                layout = text_layout(text, font)
                colour = look.color("text.primary")
                layout.setFormats(
                    SpanStyle(self._spans[number][column], "base", weight, colour).formats
                )
                lay_out(layout, 1e6, look.line("base"), font)
                wanted[column] = max(wanted[column], layout.maximumWidth() + 1)
                pieces.append(Piece(layout, 0, 0, offset, units(text)))
                offset += units(text) + 1
            laid.append(pieces)
        self._place(laid, wanted)

    def _place(self, laid: list[list[Piece]], wanted: list[float]) -> None:
        look = theme()
        room = self._width - COLUMN_GAP * max(0, len(wanted) - 1)
        widths = column_widths(wanted, room)
        y = 0.0
        for number, pieces in enumerate(laid):
            font = look.font("base", "semibold" if number == 0 and self.block.head else "regular")
            x, tallest = float(self._left), 1
            for column, piece in enumerate(pieces):
                option = QTextOption(piece.layout.textOption())
                aligns = self.block.aligns
                align = aligns[column] if column < len(aligns) else ""
                option.setAlignment(_ALIGN.get(align, Qt.AlignmentFlag.AlignLeft))
                piece.layout.setTextOption(option)
                lines = lay_out(piece.layout, widths[column], look.line("base"), font)
                tallest = max(tallest, lines)
                piece.x, piece.y = x, y + ROW_PAD
                x += widths[column] + COLUMN_GAP
            y += tallest * look.line("base") + 2 * ROW_PAD + 1
            self._row_ends.append(y)
            self.pieces += pieces
        self.height = y

    def paint(self, painter: QPainter, clip: QRectF, selected: Selected | None) -> None:
        painter.save()
        painter.setClipRect(QRectF(self._left, 0, self._width, self.height).intersected(clip))
        for number, end in enumerate(self._row_ends):
            strong = number == 0 and self.block.head
            colour = theme().color("hairline_strong" if strong else "hairline")
            painter.fillRect(QRectF(self._left, end - 1, self._width, 1), colour)
        super().paint(painter, clip, selected)
        painter.restore()
