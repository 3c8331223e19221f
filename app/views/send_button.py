"""The composer's one primary button: an arrow that sends, a square that stops."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QEnterEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QAbstractButton, QWidget

from app.render.icons import icon
from app.render.theme import theme

SIDE = 28


class SendButton(QAbstractButton):
    """Square, with an icon only; a style sheet's padding leaves such a button no room."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.is_stop = False
        self.setFixedSize(SIDE, SIDE)
        self.setAttribute(Qt.WidgetAttribute.WA_Hover)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)

    def sizeHint(self) -> QSize:
        return QSize(SIDE, SIDE)

    def show_stop(self, is_stop: bool) -> None:
        """Stop or send, in picture and words."""
        self.is_stop = is_stop
        name = "Stop (Esc)" if is_stop else "Send (Enter)"
        self.setToolTip(name)
        self.setAccessibleName(name)
        self.update()

    def enterEvent(self, event: QEnterEvent) -> None:
        super().enterEvent(event)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, look = QPainter(self), theme()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        ground, mark = "accent.base", "accent.on"
        if not self.isEnabled():
            ground, mark = "background.fill", "text.tertiary"
        elif self.isDown():
            ground = "accent.pressed"
        elif self.underMouse():
            ground = "accent.hover"
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(look.color(ground))
        radius = look.size("radius.control")
        painter.drawRoundedRect(QRectF(self.rect()), radius, radius)
        if self.is_stop:
            painter.setBrush(look.color(mark))
            painter.drawRoundedRect(QRectF(9, 9, 10, 10), 1.5, 1.5)
        else:
            icon("arrow-up", mark, 16).paint(painter, 6, 6, 16, 16)
        if self.hasFocus():
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(look.color("accent.on"), 1.5))
            painter.drawRoundedRect(QRectF(self.rect()).adjusted(2.5, 2.5, -2.5, -2.5), 4, 4)
