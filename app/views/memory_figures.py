"""MemoryFigures: free, cached, active and shared, as blocks and as memory. They add up."""

from __future__ import annotations

from PySide6.QtCore import QPoint, QRect, QSize, Qt
from PySide6.QtGui import QFontMetrics, QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from app.render.chip import PoolState, paint_state
from app.render.figures import count_text, memory_text
from app.render.theme import theme
from app.state.pool import PoolCounts

STATES: tuple[tuple[PoolState, str], ...] = (
    ("free", "Free"),
    ("cached", "Cached"),
    ("active", "Active"),
    ("shared", "Shared"),
)
HEIGHT = 60  # lines of 16, 28 and 16
GLYPH = 18  # px, chip and gap before a name
GAP = 5  # px, least distance between figures


class MemoryFigures(QWidget):
    """Four figures side by side, each under the grey glyph of its state."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._counts = PoolCounts()
        self._block_bytes = 0
        self.setAccessibleName("Blocks by state")

    @property
    def texts(self) -> list[tuple[str, str, str]]:
        """(name, blocks, memory) of every figure, as painted."""
        shown = []
        for state, name in STATES:
            number = int(getattr(self._counts, state))
            shown.append((name, count_text(number), memory_text(number * self._block_bytes)))
        return shown

    def set_counts(self, counts: PoolCounts, block_bytes: int) -> None:
        if (counts, block_bytes) != (self._counts, self._block_bytes):
            self._counts, self._block_bytes = counts, block_bytes
            words = [f"{name} {number}, {memory}" for name, number, memory in self.texts]
            self.setAccessibleDescription("; ".join(words))
            self.update()

    def sizeHint(self) -> QSize:
        return QSize(384, HEIGHT)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        kind, lefts = self._places()
        for left, (state, _), texts in zip(lefts, STATES, self.texts, strict=True):
            paint_state(painter, QPoint(left, 2), state)
            self._write(painter, QRect(left + GLYPH, 0, 120, 16), texts[0], "small", "secondary")
            is_none = not getattr(self._counts, state) and self._counts.total
            tone = "secondary" if is_none else "primary"
            self._write(painter, QRect(left, 16, 120, 28), texts[1], kind, tone, "medium")
            self._write(painter, QRect(left, 44, 120, 16), texts[2], "small", "tertiary")

    def _places(self) -> tuple[str, list[int]]:
        """Font kind of the numbers, and where each figure begins.

        A quarter each; where long numbers need more, as close as they must; in a narrow panel
        over a huge pool the numbers take the base size.
        """
        quarter, count = self.width() / len(STATES), len(STATES)
        for kind in ("large", "base"):
            needs = self._needs(kind)
            if max(needs) <= quarter:
                return kind, [round(place * quarter) for place in range(count)]
            spare = (self.width() + GAP - sum(needs)) / (count - 1)
            if spare >= 0:
                return kind, [round(sum(needs[:one]) + one * spare) for one in range(count)]
        return "base", [round(place * quarter) for place in range(count)]

    def _needs(self, kind: str) -> list[int]:
        """Width of each figure with the gap after it, px."""
        number_font = QFontMetrics(theme().font(kind, "medium"))
        small = QFontMetrics(theme().font("small"))
        return [
            GAP
            + max(
                small.horizontalAdvance(name) + GLYPH,
                number_font.horizontalAdvance(number),
                small.horizontalAdvance(memory),
            )
            for name, number, memory in self.texts
        ]

    def _write(
        self,
        painter: QPainter,
        rect: QRect,
        text: str,
        kind: str,
        tone: str,
        weight: str = "regular",
    ) -> None:
        painter.setFont(theme().font(kind, weight))
        painter.setPen(theme().color(f"text.{tone}"))
        painter.drawText(rect, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft, text)
