"""ModelRow: which model answers; fetch the starter or open another, progress, ready, failed."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QPushButton,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from app.render.plain import tool_tip
from app.render.theme import theme
from app.state.intents import Intents
from app.state.status import AppStatus
from app.views.banners import IconLabel
from app.views.buttons import set_state


class ModelRow(QFrame):
    """One row in a card.

    Signals:
        open_model_wanted: the user wants to pick a model's file or folder.
    """

    open_model_wanted = Signal()

    def __init__(self, status: AppStatus, intents: Intents, parent: QWidget) -> None:
        super().__init__(parent)
        self._status = status
        self._intents = intents
        self.setProperty("kind", "card")
        self._build()
        status.changed.connect(self._show_state)
        self._show_state()

    def _build(self) -> None:
        column = QVBoxLayout(self)
        column.setContentsMargins(15, 8, 8, 8)
        column.setSpacing(6)
        row = QHBoxLayout()
        row.setSpacing(10)
        row.addWidget(IconLabel("box", "text.secondary", self))
        self.name = QLabel(self)
        self.name.setFont(theme().font("base", "medium"))
        self.name.setTextFormat(Qt.TextFormat.PlainText)
        self.name.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Preferred)
        self.note = QLabel(self)
        self.note.setProperty("tone", "tertiary")
        self.note.setTextFormat(Qt.TextFormat.PlainText)
        self.note.setFont(theme().font("small", "regular"))
        self.note.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.mark = IconLabel("check", "success.base", self, 14)
        self.state = QLabel("Ready", self)
        self.state.setProperty("tone", "success")
        self.state.setFont(theme().font("small", "regular"))
        self.fetch_button = QPushButton("Download", self)
        self.fetch_button.setProperty("kind", "primary")
        self.fetch_button.setProperty("compact", "true")
        self.fetch_button.clicked.connect(self._intents.get_starter)
        self.cancel_button = QPushButton("Cancel", self)
        self.cancel_button.setProperty("compact", "true")
        self.cancel_button.clicked.connect(self._on_cancel)
        self.open_button = QPushButton("Open a model…", self)
        self.open_button.setProperty("compact", "true")
        self.open_button.clicked.connect(self.open_model_wanted)
        row.addWidget(self.name)
        row.addWidget(self.note, 1)
        for part in (
            self.mark,
            self.state,
            self.fetch_button,
            self.cancel_button,
            self.open_button,
        ):
            row.addWidget(part)
        column.addLayout(row)
        self.bar = QProgressBar(self)
        self.bar.setRange(0, 1000)
        self.bar.setTextVisible(False)
        self.bar.setAccessibleName("Progress")
        column.addWidget(self.bar)
        self.reason = QLabel(self)
        self.reason.setProperty("tone", "error")
        self.reason.setTextFormat(Qt.TextFormat.PlainText)
        self.reason.setFont(theme().font("small", "regular"))
        self.reason.setWordWrap(True)
        column.addWidget(self.reason)

    @Slot()
    def _show_state(self) -> None:
        status = self._status
        phase = status.phase
        self.name.setText(self._name())
        self.note.setText(self._note())
        self.note.setToolTip(tool_tip(self._note()))
        for part in (self.mark, self.state):
            part.setVisible(phase == "ready")
        can_fetch = phase in ("none", "failed") and bool(status.starter_name)
        self.fetch_button.setVisible(can_fetch)
        self.cancel_button.setVisible(phase in ("fetching", "loading"))
        loading = phase == "loading"
        self.cancel_button.setAccessibleName("Cancel loading" if loading else "Cancel download")
        self.open_button.setVisible(phase not in ("fetching", "loading"))
        self.open_button.setText("Other model…" if phase == "ready" else "Open a model…")
        self.bar.setVisible(phase in ("fetching", "loading"))
        self.bar.setRange(0, 1000 if status.fraction > 0 else 0)
        self.bar.setValue(round(status.fraction * 1000))
        self.reason.setText(status.message)
        self.reason.setVisible(phase in ("failed", "stopped", "none") and bool(status.message))
        set_state(self, "tone", "error" if phase in ("failed", "stopped") else "")

    @Slot()
    def _on_cancel(self) -> None:
        if self._status.phase == "loading":
            self._intents.cancel_load.emit()
        else:
            self._intents.cancel_starter.emit()

    def _name(self) -> str:
        status = self._status
        if status.phase in ("ready", "stopped") and status.model is not None:
            return status.model.name
        if status.phase == "loading":
            return "Loading the model"
        return status.starter_name or "No model yet"

    def _note(self) -> str:
        status = self._status
        if status.phase == "ready" and status.model is not None:
            return f"{status.model.num_parameters / 1e6:,.0f} M parameters"
        if status.phase in ("fetching", "loading"):
            return status.note
        if status.phase == "stopped":
            return "the engine stopped"
        size = f", {status.starter_bytes / 1e6:.0f} MB" if status.starter_bytes else ""
        return f"starter model{size}" if status.starter_name else ""
