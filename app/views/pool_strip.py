"""The memory panel of a narrow window: a strip with a bar by owner and four figures."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt, Signal, Slot
from PySide6.QtGui import QFontMetricsF, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QWidget

from app.render.chip import paint_state
from app.render.figures import count_text, memory_text
from app.render.theme import theme
from app.state.pool import PoolModel

HEIGHT = 48
PAD = 16
BAR = 10


class PoolStrip(QWidget):
    """A click slides the panel over the chat.

    Signals:
        clicked
    """

    clicked = Signal()

    def __init__(self, pool: PoolModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._pool = pool
        self.setFixedHeight(HEIGHT)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setToolTip("Memory panel (Ctrl+J)")
        self.setAccessibleName("Memory, opens the panel")
        pool.changed.connect(self._on_changed)

    @Slot()
    def _on_changed(self) -> None:
        counts = self._pool.counts
        words = f"{counts.free} free, {counts.cached} cached, {counts.active} active"
        self.setAccessibleDescription(f"{words}, {counts.shared} shared blocks")
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(640, HEIGHT)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton:
            self.clicked.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self.clicked.emit()
        else:
            super().keyPressEvent(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        look = theme()
        painter.fillRect(self.rect(), look.color("background.chrome"))
        painter.fillRect(0, 0, self.width(), 1, look.color("hairline"))
        left = self._paint_figures(painter)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        box = QRectF(PAD, (HEIGHT - BAR) / 2, max(40.0, left - 2 * PAD), BAR)
        self._paint_bar(painter, box)
        if self.hasFocus():
            painter.setPen(QPen(look.color("accent.focus"), 2))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(QRectF(self.rect()).adjusted(2, 3, -2, -2), 4, 4)

    def _paint_bar(self, painter: QPainter, box: QRectF) -> None:
        look = theme()
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(look.color("pool.free"))
        painter.drawRoundedRect(box, 3, 3)
        total = self._pool.num_blocks
        x = box.left()
        for row in self._pool.owner_rows() if total else []:
            for number, tone in ((row.in_use, "active"), (row.cached, "cached")):
                width = box.width() * number / total
                if width >= 0.5:
                    part = QRectF(x, box.top(), max(1.0, width - 1), box.height())
                    painter.fillRect(part, look.owner(row.owner, tone))
                x += width

    def _paint_figures(self, painter: QPainter) -> float:
        """The four figures, from the right. Returns where they begin."""
        counts, look = self._pool.counts, theme()
        with_memory = self.width() >= 900
        small, strong = look.font("small", "regular"), look.font("base", "medium")
        x = float(self.width() - PAD)
        for state in ("shared", "active", "cached", "free"):
            number = getattr(counts, state)
            memory = str(state)
            if with_memory:
                memory = f"{state}, {memory_text(number * self._pool.block_bytes)}"
            width = max(
                QFontMetricsF(strong).horizontalAdvance(count_text(number)),
                QFontMetricsF(small).horizontalAdvance(memory),
            )
            x -= width
            painter.setFont(strong)
            painter.setPen(look.color("text.primary"))
            flags = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
            painter.drawText(QRectF(x, 5, width + 4, 20), flags, count_text(number))
            painter.setFont(small)
            painter.setPen(look.color("text.tertiary"))
            painter.drawText(QRectF(x, 25, width + 4, 16), flags, memory)
            paint_state(painter, QRectF(x - 18, 9, 12, 12), state)
            x -= 18 + 20
        return x + 20
