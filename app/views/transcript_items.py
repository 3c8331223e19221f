"""The painted parts of a transcript: what all have in common, and text.

An item knows its text, its height for a width, how to paint itself and which character is under
a point. Offsets are counted in UTF-16 units, as Qt's text layout counts them. x = 0 is the left
edge of the reading column. Layouts are made when an item comes into view and kept while width
and theme stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import (
    QColor,
    QFont,
    QFontMetricsF,
    QPainter,
    QTextCharFormat,
    QTextLayout,
    QTextLine,
    QTextOption,
)

from app.render.markdown import Span, TextBlock
from app.render.plain import for_qt
from app.render.theme import theme

INDENT = 22  # one list level
QUOTE_INDENT = 14
USER_PADDING = 12
USER_INSET = 16
CARET_WIDTH = 8

Selected = tuple[int, int]  # first and last + 1 offset that is selected


def units(text: str) -> int:
    """Length of a text in UTF-16 units."""
    if text.isascii() or max(text) <= "\uffff":
        return len(text)
    return len(text.encode("utf-16-le")) // 2


def cut(text: str, start: int, end: int) -> str:
    """Part of a text between two UTF-16 offsets."""
    if text.isascii() or not text or max(text) <= "\uffff":
        return text[start:end]
    raw = text.encode("utf-16-le", "replace")[2 * start : 2 * end]
    return raw.decode("utf-16-le", "replace")


def format_range(start: int, length: int, form: QTextCharFormat) -> QTextLayout.FormatRange:
    item = QTextLayout.FormatRange()
    item.start, item.length, item.format = start, length, form
    return item


@dataclass(slots=True)
class Piece:
    """One laid-out stretch of an item's text."""

    layout: QTextLayout
    x: float
    y: float
    start: int  # offset in the item's text
    length: int


def lay_out(layout: QTextLayout, width: float, line_height: float, font: QFont) -> int:
    """Break into lines of a fixed height. Returns how many there are."""
    metrics = QFontMetricsF(font)
    top = (line_height - metrics.height()) / 2 + metrics.ascent()
    count = 0
    layout.beginLayout()
    while (line := layout.createLine()).isValid():
        line.setLineWidth(max(1.0, width))
        line.setPosition(QPointF(0, count * line_height + top - line.ascent()))
        count += 1
    layout.endLayout()
    return max(1, count)


def text_layout(text: str, font: QFont, wrap: bool = True) -> QTextLayout:
    layout = QTextLayout(for_qt(text).replace("\n", "\u2028"), font)
    option = QTextOption()
    anywhere = QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere
    option.setWrapMode(anywhere if wrap else QTextOption.WrapMode.NoWrap)
    layout.setTextOption(option)
    layout.setCacheEnabled(True)
    return layout


class SpanStyle:
    """Formats for the spans of one text, and where its inline code stands."""

    def __init__(self, spans: tuple[Span, ...], kind: str, weight: str, colour: QColor) -> None:
        self.formats: list[QTextLayout.FormatRange] = []
        self.code: list[Selected] = []
        self.links: list[tuple[int, int, str]] = []
        offset = 0
        for span in spans:
            length = units(span.text)
            self._add(span, offset, length, kind, weight, colour)
            offset += length

    def _add(
        self, span: Span, offset: int, length: int, kind: str, weight: str, colour: QColor
    ) -> None:
        form = QTextCharFormat()
        font = theme().font(kind, "semibold" if span.bold else weight)
        if span.code:
            font = theme().font("code", "regular")
            self.code.append((offset, offset + length))
        font.setItalic(span.italic)
        font.setStrikeOut(span.strike)
        form.setFont(font)
        form.setForeground(colour)
        if span.link:
            form.setForeground(theme().color("accent.base"))
            form.setFontUnderline(True)
            self.links.append((offset, offset + length, span.link))
        self.formats.append(format_range(offset, length, form))
        if span.code:
            self._widen(offset, length, form)

    def _widen(self, offset: int, length: int, form: QTextCharFormat) -> None:
        """Room for the ground behind inline code, by the spacing of the letters at its ends."""
        wide = QTextCharFormat(form)
        wide.setFontLetterSpacingType(QFont.SpacingType.AbsoluteSpacing)
        wide.setFontLetterSpacing(5)
        self.formats.append(format_range(offset + length - 1, 1, wide))
        if offset and len(self.formats) > 2:
            before = QTextCharFormat(self.formats[-3].format)
            before.setFontLetterSpacingType(QFont.SpacingType.AbsoluteSpacing)
            before.setFontLetterSpacing(5)
            self.formats.append(format_range(offset - 1, 1, before))


class Item:
    """One painted block. Subclasses fill `pieces` and `height` in `_build`."""

    gap = 8  # space above
    joint = "\n\n"  # between the text of the item before and this one, when copied
    prefix = ""  # before the text when copied from its start
    is_user = False
    first_of_user = last_of_user = False

    def __init__(self, text: str = "") -> None:
        self.text = for_qt(text)
        self.length = units(self.text)
        self.height = 0.0
        self.pieces: list[Piece] = []
        self.show_caret = False
        self._stamp: tuple[int, int] | None = None

    def is_fresh(self, width: int) -> bool:
        return self._stamp == (width, theme().number)

    def ensure(self, width: int) -> bool:
        """Lay out for `width` if that is not done. True when the height changed."""
        if self.is_fresh(width):
            return False
        before = self.height
        self.pieces = []
        self._build(width)
        self._stamp = (width, theme().number)
        return self.height != before

    def invalidate(self) -> None:
        self._stamp = None

    def estimate(self, width: int) -> float:
        """Height before the item was ever laid out."""
        per_line = max(8, width // 7)
        lines = sum(1 + len(line) // per_line for line in self.text.split("\n"))
        return float(lines * theme().line("base"))

    def _build(self, width: int) -> None:
        raise NotImplementedError

    def paint(self, painter: QPainter, clip: QRectF, selected: Selected | None) -> None:
        """Paint with the painter's origin at the item's top left; `clip` in the same place."""
        for piece in self.pieces:
            self._paint_piece(painter, piece, clip, selected)
        if self.show_caret:
            self._paint_caret(painter)

    def _paint_piece(
        self, painter: QPainter, piece: Piece, clip: QRectF, selected: Selected | None
    ) -> None:
        ranges: list[QTextLayout.FormatRange] = []
        if selected:
            start = max(selected[0], piece.start) - piece.start
            end = min(selected[1], piece.start + piece.length) - piece.start
            if end > start:
                form = QTextCharFormat()
                form.setBackground(theme().color("accent.soft"))
                form.setForeground(theme().color("text.primary"))
                ranges.append(format_range(start, end - start, form))
        piece.layout.draw(painter, QPointF(piece.x, piece.y), ranges, clip)

    def caret_place(self) -> QPointF:
        """Top left of a caret after the last character."""
        if not self.pieces:
            return QPointF(0, 3)
        piece = self.pieces[-1]
        line = piece.layout.lineAt(max(0, piece.layout.lineCount() - 1))
        if not line.isValid():
            return QPointF(piece.x, piece.y + 3)
        x = _cursor_x(line, line.textStart() + line.textLength())
        return QPointF(piece.x + x + 2, piece.y + line.y() + (line.height() - 16) / 2)

    def _paint_caret(self, painter: QPainter) -> None:
        place = self.caret_place()
        box = QRectF(place.x(), place.y(), CARET_WIDTH, 16)
        painter.fillRect(box, theme().color("text.primary"))

    def hit(self, x: float, y: float) -> int:
        """Offset of the character boundary nearest to a point."""
        best: Piece | None = None
        for piece in self.pieces:
            if best is None or self._is_nearer(piece, best, x, y):
                best = piece
        if best is None:
            return 0 if y < self.height / 2 else self.length
        layout = best.layout
        for number in range(layout.lineCount()):
            line = layout.lineAt(number)
            bottom = best.y + line.y() + line.height()
            if y < bottom or number == layout.lineCount() - 1:
                return best.start + int(line.xToCursor(x - best.x))
        return best.start

    @staticmethod
    def _is_nearer(piece: Piece, best: Piece, x: float, y: float) -> bool:
        if piece.y > best.y:
            return piece.y <= y
        return piece.y == best.y and best.x < piece.x <= x

    def link_at(self, x: float, y: float) -> str:
        return ""

    def tool_at(self, x: float, y: float) -> str:
        """Name of a control painted at a point: "copy", "wrap", or ""."""
        return ""


class TextItem(Item):
    """A paragraph, heading or list item; long ones come as several items in a row."""

    def __init__(self, block: TextBlock, continued: bool = False) -> None:
        super().__init__(block.text)
        self.block = block
        self._continued = continued
        self.continues_quote = False  # the quotation goes on from the item above
        if continued:
            self.gap, self.joint = 0, ""
        elif block.level:
            self.gap = 20 if block.level <= 2 else 16
        indent = "   " * max(0, block.indent - 1)
        bullet = "- " if block.marker == "•" else f"{block.marker} " if block.marker else ""
        self.prefix = "" if continued else "> " * block.quote + indent + bullet
        self._style: SpanStyle | None = None

    def update(self, block: TextBlock) -> bool:
        """Take a later version of the same block. False when it is of another shape."""
        same = (block.level, block.indent, block.marker, block.quote) == (
            self.block.level, self.block.indent, self.block.marker, self.block.quote,
        )  # fmt: skip
        if not same or self._continued:
            return False
        self.block, self.text = block, for_qt(block.text)
        self.length = units(self.text)
        self.invalidate()
        return True

    @property
    def _kind(self) -> str:
        return "large" if self.block.level in (1, 2) else "base"

    @property
    def _left(self) -> int:
        return self.block.indent * INDENT + self.block.quote * QUOTE_INDENT

    def _build(self, width: int) -> None:
        look = theme()
        quoted = self.block.quote > 0
        colour = look.color("text.secondary" if quoted else "text.primary")
        weight = "semibold" if self.block.level else "regular"
        font = look.font(self._kind, weight)
        self._style = SpanStyle(self.block.spans, self._kind, weight, colour)
        layout = text_layout(self.text, font)
        layout.setFormats(self._style.formats)
        line_height = look.line(self._kind)
        top = USER_PADDING if self.first_of_user else 0
        count = lay_out(layout, width - self._left, line_height, font)
        self.pieces = [Piece(layout, self._left, top, 0, self.length)]
        bottom = USER_PADDING if self.last_of_user else 0
        self.height = top + count * line_height + bottom

    def paint(self, painter: QPainter, clip: QRectF, selected: Selected | None) -> None:
        self._paint_quote(painter)
        self._paint_marker(painter)
        self._paint_code_grounds(painter)
        super().paint(painter, clip, selected)

    def _paint_quote(self, painter: QPainter) -> None:
        for level in range(self.block.quote):
            above = self.gap if self.continues_quote else 0
            bar = QRectF(level * QUOTE_INDENT, -above, 2, self.height + above)
            painter.fillRect(bar, theme().color("hairline_strong"))

    def _paint_marker(self, painter: QPainter) -> None:
        if not self.block.marker or self._continued:
            return
        look, left = theme(), self._left
        painter.setPen(look.color("text.secondary"))
        if self.block.marker == "•":
            painter.save()
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(look.color("text.secondary"))
            painter.drawEllipse(QPointF(left - INDENT + 7, look.line("base") / 2), 2.5, 2.5)
            painter.restore()
            return
        painter.setFont(look.font("base", "regular"))
        box = QRectF(left - INDENT - 30, 0, INDENT + 30 - 6, look.line("base"))
        flags = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(box, int(flags), self.block.marker)

    def _paint_code_grounds(self, painter: QPainter) -> None:
        if not self._style or not self._style.code:
            return
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme().color("background.fill"))
        piece = self.pieces[0]
        for start, end in self._style.code:
            for number in range(piece.layout.lineCount()):
                self._paint_ground(painter, piece, number, start, end)
        painter.restore()

    def _paint_ground(
        self, painter: QPainter, piece: Piece, number: int, start: int, end: int
    ) -> None:
        line = piece.layout.lineAt(number)
        first = max(start, line.textStart())
        last = min(end, line.textStart() + line.textLength())
        if last <= first:
            return
        left, right = _cursor_x(line, first), _cursor_x(line, last)
        room = 5 if last == end else 0
        y = piece.y + line.y() + line.height() / 2 - 10
        box = QRectF(piece.x + left - 5, y, right - left - room + 10, 20)
        painter.drawRoundedRect(box, 4, 4)

    def link_at(self, x: float, y: float) -> str:
        if not self._style or not self._style.links or not self.pieces:
            return ""
        offset = self.hit(x, y)
        for start, end, link in self._style.links:
            if start <= offset <= end and 0 <= y <= self.height:
                return link
        return ""


def _cursor_x(line: QTextLine, position: int) -> float:
    """Where a text position lies in a line; PySide gives a pair, its stubs promise a number."""
    x: Any = line.cursorToX(position)
    return float(x[0] if isinstance(x, tuple) else x)
