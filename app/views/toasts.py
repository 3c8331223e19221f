"""Toasts: lines at the bottom of the chat that go by themselves; errors stay until closed."""

from __future__ import annotations

from PySide6.QtCore import QObject, QTimer, Signal, Slot
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QWidget

from app.render.theme import theme
from app.state.intents import Intents
from app.state.status import AppStatus
from app.views.banners import IconLabel, wrapping_label
from app.views.buttons import icon_button

SHOWN_MS = 6000
MOST = 4
NOTICE_PICTURE = "microchip"  # it comes from the machine, not from what the user did
GAP = 8


class Toast(QFrame):
    """One line.

    Signals:
        undo_wanted, closed
    """

    undo_wanted = Signal()
    closed = Signal()

    def __init__(
        self, text: str, undo_label: str, is_error: bool, parent: QWidget, picture: str = "check"
    ) -> None:
        super().__init__(parent)
        self.is_error = is_error
        self.setProperty("kind", "banner" if is_error else "popup")
        self.setProperty("tone", "error" if is_error else "")
        row = QHBoxLayout(self)
        row.setContentsMargins(12, 6, 8, 6)
        row.setSpacing(12)
        mark = ("triangle-alert", "error.base") if is_error else (picture, "text.secondary")
        row.addWidget(IconLabel(*mark, self))
        words = wrapping_label(self)
        words.setText(text[:600])
        row.addWidget(words, 1)
        if undo_label:
            self.undo_button = QPushButton(undo_label, self)
            self.undo_button.setProperty("compact", "true")
            self.undo_button.clicked.connect(self._on_undo)
            row.addWidget(self.undo_button)
        close = icon_button("x", "Close this message", self, 14)
        close.clicked.connect(self.closed)
        row.addWidget(close)
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self.closed)
        if not is_error:
            self._timer.start(SHOWN_MS)
        self.setAccessibleName(text)

    @Slot()
    def _on_undo(self) -> None:
        self.undo_wanted.emit()
        self.closed.emit()

    def height_for(self, width: int) -> int:
        self.setFixedWidth(width)
        layout = self.layout()
        needed = layout.totalHeightForWidth(width) if layout is not None else 0
        return max(40, needed)


class Toasts(QObject):
    """Keeps the toasts of the chat column in place, the newest lowest."""

    def __init__(self, status: AppStatus, intents: Intents, host: QWidget) -> None:
        super().__init__(host)
        self._host = host
        self._intents = intents
        self.shown: list[Toast] = []
        self._bottom = 16
        status.toast.connect(self._on_toast)
        status.notice.connect(self._on_notice)
        status.error.connect(self._on_error)

    @Slot(str, str)
    def _on_toast(self, text: str, undo_label: str) -> None:
        self._add(Toast(text, undo_label, False, self._host))

    @Slot(str)
    def _on_notice(self, text: str) -> None:
        self._add(Toast(text, "", False, self._host, NOTICE_PICTURE))

    @Slot(str)
    def _on_error(self, text: str) -> None:
        self._add(Toast(text, "", True, self._host))

    def _add(self, toast: Toast) -> None:
        toast.closed.connect(self._on_closed)
        toast.undo_wanted.connect(self._intents.undo_delete)
        self.shown.append(toast)
        while len(self.shown) > MOST:
            gone = next((one for one in self.shown if not one.is_error), self.shown[0])
            self._remove(gone)
        toast.show()
        self.arrange(self._bottom)

    @Slot()
    def _on_closed(self) -> None:
        toast = self.sender()
        if isinstance(toast, Toast):
            self._remove(toast)
            self.arrange(self._bottom)

    def _remove(self, toast: Toast) -> None:
        if toast in self.shown:
            self.shown.remove(toast)
            toast.hide()
            toast.deleteLater()

    def arrange(self, bottom: int) -> None:
        """Stack the toasts so that the lowest ends `bottom` px above the host's foot."""
        self._bottom = bottom
        host = self._host
        width = int(min(theme().size("toast_width"), host.width() - 32))
        y = host.height() - bottom
        for toast in reversed(self.shown):
            height = toast.height_for(width)
            y -= height
            toast.setGeometry((host.width() - width) // 2, y, width, height)
            toast.raise_()
            y -= GAP
