"""EmptyWords: a short title and a sentence where there is nothing to list yet."""

from __future__ import annotations

from PySide6.QtCore import QPointF
from PySide6.QtGui import QFont, QPainter, QPaintEvent, QTextLayout
from PySide6.QtWidgets import QWidget

from app.render.theme import theme


class EmptyWords(QWidget):
    """Painted, because a label cannot keep the line height of the tokens."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._title = ""
        self._text = ""

    @property
    def words(self) -> tuple[str, str]:
        return self._title, self._text

    def set_words(self, title: str, text: str) -> None:
        if (title, text) != self.words:
            self._title, self._text = title, text
            self.setAccessibleName(f"{title}. {text}")
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        now, painter = theme(), QPainter(self)
        painter.setPen(now.color("text.primary"))
        y = self._draw(painter, self._title, now.font("base", "medium"), 0)
        painter.setPen(now.color("text.secondary"))
        self._draw(painter, self._text, now.font("base"), y)

    def _draw(self, painter: QPainter, text: str, font: QFont, y: int) -> int:
        """Draw wrapped text from `y` down; returns where it ends."""
        layout = QTextLayout(text, font)
        layout.beginLayout()
        line = layout.createLine()
        while line.isValid():
            line.setLineWidth(self.width())
            line.setPosition(QPointF(0, y + (theme().line("base") - line.height()) / 2))
            y += theme().line("base")
            line = layout.createLine()
        layout.endLayout()
        layout.draw(painter, QPointF(0, 0))
        return y
