"""The banner over the chat column: the model could not be loaded, or the engine stopped."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QSize, Qt, Signal, Slot
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QSizePolicy, QWidget

from app.render.icons import icon
from app.state.intents import Intents
from app.state.status import AppStatus
from app.views.buttons import icon_button, set_state


class IconLabel(QLabel):
    """An icon of the theme as a label; drawn again when the theme changes."""

    def __init__(self, picture: str, colour: str, parent: QWidget, px: int = 16) -> None:
        super().__init__(parent)
        self._picture, self._colour, self._px = picture, colour, px
        self.setFixedSize(px, px)
        self._draw()

    def set_picture(self, picture: str, colour: str) -> None:
        self._picture, self._colour = picture, colour
        self._draw()

    def _draw(self) -> None:
        drawn = icon(self._picture, self._colour, self._px)
        size = QSize(self._px, self._px)
        self.setPixmap(drawn.pixmap(size, self.devicePixelRatioF()))

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.PaletteChange:
            self._draw()


def wrapping_label(parent: QWidget) -> QLabel:
    """Plain text that takes the width it is given, and says how high it gets there."""
    label = QLabel(parent)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setWordWrap(True)
    policy = QSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
    policy.setHeightForWidth(True)  # a new policy has lost what setWordWrap told the old one
    label.setSizePolicy(policy)
    return label


class StatusBanner(QFrame):
    """Shown while the model is failed or the engine stopped.

    Signals:
        open_model_wanted: the user wants to pick another model.
    """

    open_model_wanted = Signal()

    def __init__(self, status: AppStatus, intents: Intents, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._status = status
        self._intents = intents
        self._dismissed: str | None = None  # the message that was closed by hand
        self.setProperty("kind", "banner")
        self.setProperty("tone", "error")
        row = QHBoxLayout(self)
        row.setContentsMargins(12, 6, 8, 6)
        row.setSpacing(12)
        row.addWidget(IconLabel("triangle-alert", "error.base", self))
        self.words = wrapping_label(self)
        row.addWidget(self.words, 1)
        self.button = QPushButton(self)
        self.button.setProperty("compact", "true")
        self.button.clicked.connect(self._on_button)
        row.addWidget(self.button)
        self.close_button = icon_button("x", "Close this message", self, 14)
        self.close_button.clicked.connect(self._on_close)
        row.addWidget(self.close_button)
        status.changed.connect(self._show_state)
        self._show_state()

    @property
    def is_needed(self) -> bool:
        status = self._status
        if status.phase == "stopped":
            return True
        return status.phase == "failed" and status.message != self._dismissed

    @Slot()
    def _show_state(self) -> None:
        if self._status.phase != "failed":
            self._dismissed = None
        stopped = self._status.phase == "stopped"
        reason = self._status.message
        if stopped:
            reason = f"The engine stopped. {reason} Your chats are kept.".replace("  ", " ")
        self.words.setText(reason or "The model could not be loaded.")
        self.button.setText("Restart" if stopped else "Pick another…")
        self.close_button.setVisible(not stopped)
        set_state(self, "tone", "error")
        self.setVisible(self.is_needed)

    @Slot()
    def _on_button(self) -> None:
        if self._status.phase == "stopped":
            self._intents.restart_engine.emit()
        else:
            self.open_model_wanted.emit()

    @Slot()
    def _on_close(self) -> None:
        self._dismissed = self._status.message
        self.hide()
