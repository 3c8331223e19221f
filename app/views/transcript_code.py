"""A code block: head with language, wrap and copy; coloured lines that scroll or wrap.

Only the lines in view are laid out, so that a block of thousands of lines costs what one screen
costs. While the block is still being written its newest part alone is coloured again.
"""

from __future__ import annotations

import unicodedata

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QFontMetricsF, QPainter, QPainterPath, QPen, QTextCharFormat, QTextLayout

from app.render.highlight import ColourRun, highlight, language_name
from app.render.icons import icon
from app.render.markdown import CodeBlock
from app.render.plain import PIECE_CHARS, for_qt
from app.render.theme import theme
from app.views.transcript_items import (
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

HEAD = 32
PAD_X = 12
PAD_TOP = 8
PAD_BOTTOM = 10
LIVE_LINES = 60  # of a growing block, coloured again on each change
TOOL = 28


def columns(text: str) -> int:
    """Width of a line in characters of a fixed-width font."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def wrapped(text: str, per_row: int) -> list[tuple[int, int]]:
    """Cut one line into rows of at most `per_row` columns."""
    if columns(text) <= per_row:
        return [(0, len(text))]
    rows, start, used = [], 0, 0
    for index, char in enumerate(text):
        width = 1 if char.isascii() else columns(char)
        if used + width > per_row and index > start:
            rows.append((start, index))
            start, used = index, 0
        used += width
    rows.append((start, len(text)))
    return rows


class CodeItem(Item):
    """One code block of a reply."""

    gap = 12

    def __init__(self, block: CodeBlock, wrap: bool = False) -> None:
        super().__init__(block.text)
        self.block = block
        self.wrap = wrap
        self.scroll_x = 0.0
        self.max_scroll_x = 0.0
        self._left = block.indent * INDENT + block.quote * QUOTE_INDENT
        self._width = 0
        self._runs: list[list[ColourRun]] = []
        self._num_coloured = 0  # lines whose colours are final
        self._is_coloured = False
        self._lines: list[str] = []
        self._rows: list[tuple[int, int, int, int]] = []  # line, start, end, offset in text
        self._laid_out: dict[tuple[int, int, int], QTextLayout] = {}

    def update(self, block: CodeBlock, wrap: bool) -> bool:
        """Take a later version of the same block. False when it is of another shape."""
        same = (block.language, block.indent, block.quote) == (
            self.block.language, self.block.indent, self.block.quote,
        )  # fmt: skip
        if not same:
            return False
        if not block.text.startswith(self.block.text):
            self._num_coloured = 0
        was_closed = self.block.closed
        if block.text != self.block.text or block.closed != was_closed:
            self.block, self.text = block, for_qt(block.text)
            self.length = units(self.text)
            self._is_coloured = False
            self.invalidate()
        return True

    def set_wrap(self, wrap: bool) -> None:
        if wrap != self.wrap:
            self.wrap, self.scroll_x = wrap, 0.0
            self._laid_out.clear()
            self.invalidate()

    def estimate(self, width: int) -> float:
        lines = self.text.count("\n") + 1
        return float(HEAD + PAD_TOP + PAD_BOTTOM + lines * theme().line("code"))

    # --- layout ---------------------------------------------------------------------------

    def _build(self, width: int) -> None:
        if self._stamp is None or self._stamp[1] != theme().number:
            self._laid_out.clear()
        self._width = width - self._left
        self._lines = self.text.split("\n")
        self._colour()
        char = QFontMetricsF(theme().font("code", "regular")).horizontalAdvance("0")
        per_row = PIECE_CHARS
        if self.wrap:
            per_row = max(8, int((self._width - 2 * PAD_X) / char))
        self._rows, offset, widest = [], 0, 0
        for number, line in enumerate(self._lines):
            for start, end in wrapped(line, per_row):
                self._rows.append((number, start, end, offset + units(line[:start])))
                widest = max(widest, columns(line[start:end]))
            offset += units(line) + 1
        spare = widest * char + 2 * PAD_X - self._width
        self.max_scroll_x = max(0.0, spare + 8) if spare > 0 else 0.0
        self.scroll_x = min(self.scroll_x, self.max_scroll_x)
        rows = len(self._rows) * theme().line("code")
        bar = 6 if self.max_scroll_x else 0
        self.height = float(HEAD + PAD_TOP + rows + PAD_BOTTOM + bar)

    def _colour(self) -> None:
        """Colours for the lines; of a growing block only for its newest part."""
        if self._is_coloured:
            return
        if self.block.closed or not self.block.language:
            self._runs = highlight(self.text, self.block.language)
            self._laid_out.clear()
        else:
            self._colour_live()
        self._is_coloured = True

    def _colour_live(self) -> None:
        first = self._num_coloured
        if len(self._lines) == len(self._runs):
            first = len(self._lines) - 1  # the same line goes on: it alone is coloured again
        live = self._lines[first:]
        self._runs[first:] = highlight("\n".join(live), self.block.language)
        for key in [key for key in self._laid_out if key[0] >= first]:
            del self._laid_out[key]
        if len(live) > LIVE_LINES:
            keep = len(live) - LIVE_LINES // 3
            blank = next((i for i in range(keep, 0, -1) if not live[i].strip()), keep)
            self._num_coloured = first + blank

    def _row_layout(self, number: int, start: int, end: int) -> QTextLayout:
        key = (number, start, end)
        layout = self._laid_out.get(key)
        if layout is None:
            layout = self._laid_out[key] = self._make_row(number, start, end)
        return layout

    def _make_row(self, number: int, start: int, end: int) -> QTextLayout:
        look = theme()
        font = look.font("code", "regular")
        line = self._lines[number]
        text = line[start:end]
        layout = text_layout(text, font, wrap=False)
        option = layout.textOption()
        option.setTabStopDistance(4 * QFontMetricsF(font).horizontalAdvance(" "))
        layout.setTextOption(option)
        plain = QTextCharFormat()
        plain.setForeground(look.color("code.plain"))
        formats = [format_range(0, units(text), plain)]
        for column, length, colour in self._runs[number] if number < len(self._runs) else ():
            first, last = max(column, start), min(column + length, end)
            if last > first:
                form = QTextCharFormat()
                form.setForeground(look.color(f"code.{colour}"))
                where = units(line[start:first])
                formats.append(format_range(where, units(line[first:last]), form))
        layout.setFormats(formats)
        lay_out(layout, 1e6, look.line("code"), font)
        return layout

    def _visible(self, top: float, bottom: float) -> list[Piece]:
        """Rows between two heights, laid out."""
        line = theme().line("code")
        first = max(0, int((top - HEAD - PAD_TOP) // line))
        last = max(first, int((bottom - HEAD - PAD_TOP) // line) + 1)
        found = []
        for index in range(first, min(last, len(self._rows))):
            number, start, end, offset = self._rows[index]
            layout = self._row_layout(number, start, end)
            x = self._left + PAD_X - self.scroll_x
            length = units(self._lines[number][start:end])
            found.append(Piece(layout, x, HEAD + PAD_TOP + index * line, offset, length))
        return found

    # --- painting ---------------------------------------------------------------------------

    def paint(self, painter: QPainter, clip: QRectF, selected: Selected | None) -> None:
        self._paint_frame(painter)
        body = QRectF(self._left + 1, HEAD, self._width - 2, self.height - HEAD - 1)
        painter.save()
        painter.setClipRect(body.intersected(clip))
        self.pieces = self._visible(clip.top(), clip.bottom())
        super().paint(painter, clip, selected)
        painter.restore()
        if self.max_scroll_x:
            self._paint_bar(painter)

    def caret_place(self) -> QPointF:
        if not self._rows:
            return QPointF(self._left + PAD_X, HEAD + PAD_TOP + 2)
        number, start, end, _ = self._rows[-1]
        width = self._row_layout(number, start, end).lineAt(0).naturalTextWidth()
        y = HEAD + PAD_TOP + (len(self._rows) - 1) * theme().line("code")
        return QPointF(self._left + PAD_X - self.scroll_x + width + 1, y + 2)

    def _paint_frame(self, painter: QPainter) -> None:
        look = theme()
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        path = QPainterPath()
        box = QRectF(self._left + 0.5, 0.5, self._width - 1, self.height - 1)
        path.addRoundedRect(box, 8, 8)
        painter.fillPath(path, look.color("code.background"))
        painter.setPen(QPen(look.color("hairline"), 1))
        painter.drawPath(path)
        painter.restore()
        line = QRectF(self._left + 1, HEAD - 1, self._width - 2, 1)
        painter.fillRect(line, look.color("hairline"))
        painter.setPen(look.color("text.secondary"))
        painter.setFont(look.font("small", "regular"))
        name = QRectF(self._left + PAD_X, 0, self._width - 3 * TOOL, HEAD - 1)
        flags = Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft
        painter.drawText(name, int(flags), language_name(self.block.language))
        for tool, left in self._tools():
            picture = "wrap-text" if tool == "wrap" else "copy"
            on = tool == "wrap" and self.wrap
            picture_icon = icon(picture, "accent.base" if on else "text.secondary", 14)
            picture_icon.paint(painter, int(left + 7), (HEAD - 14) // 2, 14, 14)

    def _paint_bar(self, painter: QPainter) -> None:
        """A thin mark of where a block with long lines stands."""
        track = self._width - 2 * PAD_X
        share = track / (track + self.max_scroll_x)
        x = self._left + PAD_X + (track - track * share) * self.scroll_x / self.max_scroll_x
        bar = QRectF(x, self.height - 7, track * share, 4)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme().color("hairline_strong"))
        painter.drawRoundedRect(bar, 2, 2)
        painter.restore()

    def _tools(self) -> list[tuple[str, float]]:
        right = self._left + self._width
        return [("wrap", right - 2 * TOOL - 4), ("copy", right - TOOL - 4)]

    # --- asking ------------------------------------------------------------------------------

    def hit(self, x: float, y: float) -> int:
        pieces = self._visible(y, y)
        if y < HEAD or not pieces:
            return 0 if y < self.height / 2 else self.length
        piece = pieces[0]
        return piece.start + int(piece.layout.lineAt(0).xToCursor(x - piece.x))

    def tool_at(self, x: float, y: float) -> str:
        if not 0 <= y < HEAD:
            return ""
        return next((tool for tool, left in self._tools() if left <= x < left + TOOL), "")
