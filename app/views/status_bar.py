"""The line at the foot of the window: model, device, load, and how full the pool is."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, Signal, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QToolButton, QVBoxLayout, QWidget

from app.render.figures import count_text, memory_text
from app.render.plain import tool_tip
from app.render.theme import theme
from app.state.intents import Intents
from app.state.pool import PoolModel
from app.state.status import AppStatus
from app.views.banners import IconLabel
from app.views.buttons import picture_of
from app.views.gauge import Gauge

DEVICE_FROM = 760  # px of the line that leave room for the device's name


def in_use_words(in_use_bytes: int, total_bytes: int) -> str:
    """ "3.58 of 9.00 GiB in use": one unit when both have the same."""
    used, total = memory_text(in_use_bytes), memory_text(total_bytes)
    if used.split(" ")[-1] == total.split(" ")[-1] or not in_use_bytes:
        used = used.split(" ")[0]
    return f"{used} of {total} in use"


class StatusLine(QWidget):
    """Each part opens its place.

    Signals:
        model_wanted: the model's name was pressed.
        panel_wanted: the gauge was pressed.
    """

    model_wanted = Signal()
    panel_wanted = Signal()

    def __init__(
        self,
        status: AppStatus,
        pool: PoolModel,
        intents: Intents,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._status = status
        self._pool = pool
        self._intents = intents
        self.setProperty("surface", "chrome")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setFixedHeight(int(theme().size("status_bar")))
        self._build()
        status.changed.connect(self._show_state)
        pool.changed.connect(self._show_pool)
        self._show_state()
        self._show_pool()

    def _build(self) -> None:
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        line = QFrame(self)
        line.setProperty("kind", "hairline")
        line.setFixedHeight(1)
        column.addWidget(line)
        row = QHBoxLayout()
        row.setContentsMargins(4, 0, 12, 0)
        row.setSpacing(10)
        self.model = self._part("box", "Model")
        self.model.clicked.connect(self.model_wanted)
        self.cancel = self._part("", "Cancel loading")
        self.cancel.setText("Cancel")
        self.cancel.clicked.connect(self._on_cancel)
        self.device_icon = IconLabel("cpu", "text.secondary", self, 14)
        self.device = self._label()
        self.load = self._label()
        self.speed = self._label()
        self.gauge = Gauge(96, self)
        self.pool = self._part("", "Memory pool")
        self.pool.clicked.connect(self.panel_wanted)
        row.addWidget(self.model)
        row.addSpacing(-8)
        row.addWidget(self.cancel)
        row.addSpacing(2)
        row.addWidget(self.device_icon)
        row.addSpacing(-4)
        row.addWidget(self.device)
        row.addStretch(1)
        for part in (self.load, self.speed, self.gauge, self.pool):
            row.addWidget(part)
        column.addLayout(row, 1)

    def _label(self) -> QLabel:
        label = QLabel(self)
        label.setProperty("tone", "secondary")
        label.setTextFormat(Qt.TextFormat.PlainText)
        label.setFont(theme().font("small", "regular"))
        return label

    def _part(self, picture: str, name: str) -> QToolButton:
        part = QToolButton(self)
        part.setProperty("kind", "plain")
        part.setProperty("compact", "true")
        part.setProperty("weight", "regular")
        part.setAccessibleName(name)
        if picture:
            part.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
            picture_of(part, picture, 14)
        return part

    @Slot()
    def _show_state(self) -> None:
        status, model = self._status, self._status.model
        words = self._model_words().replace("&", "&&")  # a button takes one for a key
        self.model.setText(f" {words}")
        tip = model.file if model and status.phase == "ready" else status.message
        self.model.setToolTip(tool_tip(tip))
        self._show_cancel()
        self._show_device()
        number = status.num_generating
        ready = status.phase == "ready"
        self.load.setText(f"{number} generating" if number else "Idle" if ready else "")
        self.speed.setText(f"{status.tokens_per_s:,.0f} tok/s" if number else "")
        self.speed.setVisible(bool(number))

    def _show_cancel(self) -> None:
        phase = self._status.phase
        self.cancel.setVisible(phase in ("fetching", "loading"))
        words = "Cancel download" if phase == "fetching" else "Cancel loading"
        self.cancel.setToolTip(words)
        self.cancel.setAccessibleName(words)

    @Slot()
    def _on_cancel(self) -> None:
        if self._status.phase == "loading":
            self._intents.cancel_load.emit()
        else:
            self._intents.cancel_starter.emit()

    def _show_device(self) -> None:
        status, model = self._status, self._status.model
        known = model is not None and status.phase == "ready" and self.width() >= DEVICE_FROM
        if known and model is not None:
            self.device.setText(model.device_name)
            picture = "cpu" if model.device == "cpu" else "microchip"
            self.device_icon.set_picture(picture, "text.secondary")
        self.device.setVisible(known)
        self.device_icon.setVisible(known)

    def _model_words(self) -> str:
        status, model = self._status, self._status.model
        if status.phase == "ready" and model is not None:
            words = [model.name, model.storage, model.precision]
            return ", ".join(word for word in words if word)
        percent = f" {status.fraction:.0%}" if status.fraction else ""
        return {
            "fetching": f"Fetching {status.starter_name}{percent}",
            "loading": f"Loading{percent}",
            "failed": "No model",
            "stopped": "Engine stopped",
        }.get(status.phase, "No model")

    @Slot()
    def _show_pool(self) -> None:
        counts, pool = self._pool.counts, self._pool
        known = pool.num_blocks > 0
        self.gauge.setVisible(known)
        self.pool.setVisible(known)
        if not known:
            return
        in_use = counts.active + counts.shared
        self.gauge.set_value(in_use / pool.num_blocks)
        size = pool.block_bytes
        self.pool.setText(in_use_words(in_use * size, pool.num_blocks * size))
        self.pool.setToolTip(f"{count_text(in_use)} of {count_text(pool.num_blocks)} blocks in use")

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._show_device()

    def sizeHint(self) -> QSize:
        return QSize(640, int(theme().size("status_bar")))
