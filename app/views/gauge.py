"""A thin bar that shows how much of something is used."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QWidget

from app.render.theme import theme


class Gauge(QWidget):
    """6 px high; the colour names come from the theme."""

    def __init__(self, width: int, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._width = width
        self.fraction = 0.0
        self.colour = "state_glyph.active"
        self.setFixedSize(self.sizeHint())

    def sizeHint(self) -> QSize:
        return QSize(self._width, int(theme().size("gauge_bar")))

    def set_value(self, fraction: float, colour: str = "state_glyph.active") -> None:
        fraction = max(0.0, min(1.0, fraction))
        if (fraction, colour) != (self.fraction, self.colour):
            self.fraction, self.colour = fraction, colour
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        box = QRectF(self.rect())
        radius = box.height() / 2
        painter.setBrush(theme().color("background.selected"))
        painter.drawRoundedRect(box, radius, radius)
        if self.fraction > 0:
            box.setWidth(max(box.height(), box.width() * self.fraction))
            painter.setBrush(theme().color(self.colour))
            painter.drawRoundedRect(box, radius, radius)
