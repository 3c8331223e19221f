"""The composer under a chat: message, settings of the chat, context used, send or stop."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPoint, QSize, Qt, Signal, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.render.plain import for_qt, letters_words
from app.render.theme import theme
from app.state.intents import Intents
from app.state.session import Session
from app.state.status import AppStatus
from app.views.buttons import icon_button, picture_of, refresh_icons, set_state
from app.views.chat_settings import ChatSettings
from app.views.composer_edit import ComposerEdit
from app.views.gauge import Gauge
from app.views.send_button import SendButton

PAD = 16
WARN_FROM = 0.85  # of the context
ROW_HEIGHT = 28


class PastedChip(QFrame):
    """A long pasted text, kept aside.

    Signals:
        remove_wanted: the cross was pressed.
    """

    remove_wanted = Signal()

    def __init__(self, text: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.text = text
        self.setProperty("kind", "banner")
        words = f"Pasted text, {letters_words(len(text.encode('utf-8', 'replace')))}"
        label = QLabel(words, self)
        label.setFont(theme().font("small", "regular"))
        close = icon_button("x", "Remove the pasted text", self, 14)
        close.clicked.connect(self.remove_wanted)
        row = QHBoxLayout(self)
        row.setContentsMargins(8, 2, 2, 2)
        row.setSpacing(4)
        row.addWidget(label)
        row.addWidget(close)
        self.setAccessibleName(words)


class Composer(QFrame):
    """Writes one chat's next message; asks through `intents`.

    Signals:
        height_changed: the text needs more or less room.
    """

    height_changed = Signal()

    def __init__(
        self, session: Session, status: AppStatus, intents: Intents, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self._session = session
        self._status = status
        self._intents = intents
        self._pasted: list[PastedChip] = []
        self._settings: ChatSettings | None = None
        self.setProperty("kind", "composer")
        self._build()
        session.changed.connect(self._show_state)
        session.turn_changed.connect(self._show_state)
        status.changed.connect(self._show_state)
        self._show_state()

    def _build(self) -> None:
        column = QVBoxLayout(self)
        column.setContentsMargins(PAD - 1, 9, 9, 9)
        column.setSpacing(6)
        self._chips = QWidget(self)
        self._chip_row = QHBoxLayout(self._chips)
        self._chip_row.setContentsMargins(0, 0, 0, 0)
        self._chip_row.addStretch(1)
        self._chips.hide()
        column.addWidget(self._chips)
        self.edit = ComposerEdit(self)
        self.edit.send_wanted.connect(self.send)
        self.edit.long_pasted.connect(self.keep_pasted)
        self.edit.focus_changed.connect(self._on_focus)
        self.edit.textChanged.connect(self._on_text)
        column.addWidget(self.edit, 1)
        column.addLayout(self._build_row())

    def _build_row(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(8)
        row.setContentsMargins(-5, 0, 0, 0)
        self.settings_button = QToolButton(self)
        self.settings_button.setProperty("kind", "plain")
        self.settings_button.setProperty("compact", "true")
        self.settings_button.setProperty("weight", "regular")
        self.settings_button.setText(" Chat settings")
        self.settings_button.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        picture_of(self.settings_button, "settings-2", 14)
        self.settings_button.setAccessibleName("Settings for this chat")
        self.settings_button.setToolTip("System prompt and sampling of this chat")
        self.settings_button.clicked.connect(self.open_settings)
        self.hint = QLabel(self)
        self.hint.setProperty("tone", "tertiary")
        self.hint.setTextFormat(Qt.TextFormat.PlainText)
        self.gauge = Gauge(52, self)
        self.context = QLabel(self)
        self.context.setProperty("tone", "secondary")
        for label in (self.hint, self.context):
            label.setFont(theme().font("small", "regular"))
        self.send_button = SendButton(self)
        self.send_button.clicked.connect(self._on_button)
        row.addWidget(self.settings_button)
        row.addStretch(1)
        for part in (self.hint, self.gauge, self.context, self.send_button):
            row.addWidget(part)
        return row

    # --- state -------------------------------------------------------------------------------

    @property
    def has_text(self) -> bool:
        return bool(self._pasted) or bool(self.edit.toPlainText().strip())

    @property
    def can_send(self) -> bool:
        return self._status.phase == "ready" and self.has_text

    @Slot()
    def _show_state(self, *_: object) -> None:
        busy, ready = self._session.is_busy, self._status.phase == "ready"
        self.send_button.show_stop(busy)
        self.send_button.setEnabled(busy or self.can_send)
        self.hint.setText(self._hint(busy, ready))
        self.hint.setVisible(bool(self.hint.text()))
        self._show_context()

    def _hint(self, busy: bool, ready: bool) -> str:
        if not ready:
            return {
                "loading": "The model is loading",
                "fetching": "The model is being fetched",
                "stopped": "The engine has stopped",
            }.get(self._status.phase, "No model is loaded")
        if busy and self.has_text:
            return "queued on Enter"
        return ""

    def _show_context(self) -> None:
        model = self._status.model
        turns = self._session.record.turns
        reply = turns[-1].reply if turns else None
        used = reply.prompt_tokens + reply.new_tokens if reply is not None else 0
        if not used and len(turns) > 1 and turns[-2].reply is not None:
            used = turns[-2].reply.prompt_tokens + turns[-2].reply.new_tokens
        shown = model is not None and used > 0 and self.width() > 420
        self.gauge.setVisible(shown)
        self.context.setVisible(shown)
        if not shown or model is None:
            return
        fraction = used / max(1, model.context_tokens)
        is_tight = fraction >= WARN_FROM
        words = f"{used:,} of {model.context_tokens:,}"
        self.context.setText(f"{words}, context nearly full" if is_tight else words)
        self.context.setToolTip("Tokens of the context that this chat uses")
        set_state(self.context, "tone", "warn" if is_tight else "secondary")
        self.gauge.set_value(fraction, "warn.base" if is_tight else "state_glyph.active")

    @Slot(bool)
    def _on_focus(self, has_focus: bool) -> None:
        set_state(self, "lit", "true" if has_focus else "false")

    @Slot()
    def _on_text(self) -> None:
        self._show_state()
        self.height_changed.emit()

    # --- sizes -------------------------------------------------------------------------------

    def wanted_height(self) -> int:
        chips = self._chips.sizeHint().height() + 6 if self._pasted else 0
        height = 10 + chips + self.edit.wanted_height() + 6 + ROW_HEIGHT + 10
        look = theme()
        least = int(look.size("composer_min")) + chips
        return max(least, min(int(look.size("composer_max")), height))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        wide = self.width() > 360
        style = Qt.ToolButtonStyle
        self.settings_button.setToolButtonStyle(
            style.ToolButtonTextBesideIcon if wide else style.ToolButtonIconOnly
        )
        self._show_context()
        self.height_changed.emit()

    def sizeHint(self) -> QSize:
        return QSize(400, self.wanted_height())

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.PaletteChange:
            refresh_icons(self)

    # --- what the user does ------------------------------------------------------------------

    def text(self) -> str:
        """The message as it would be sent: what was typed, then what was pasted."""
        typed = self.edit.toPlainText()
        parts = [typed] if typed.strip() else []
        return "\n\n".join([*parts, *(chip.text for chip in self._pasted)])

    def draft(self) -> tuple[str, tuple[str, ...]]:
        """Typed text and pasted texts, to be kept while the tab is closed."""
        return self.edit.toPlainText(), tuple(chip.text for chip in self._pasted)

    def set_draft(self, typed: str, pasted: tuple[str, ...]) -> None:
        self.edit.set_text(typed)
        for text in pasted:
            self.keep_pasted(text)

    @Slot(object)
    def keep_pasted(self, text: str) -> None:
        """Keep a long text aside; a chip stands for it."""
        chip = PastedChip(text, self._chips)
        chip.remove_wanted.connect(self._on_remove)
        self._pasted.append(chip)
        self._chip_row.insertWidget(len(self._pasted) - 1, chip)
        self._chips.show()
        self._on_text()

    @Slot()
    def _on_remove(self) -> None:
        chip = self.sender()
        if isinstance(chip, PastedChip):
            self._drop([chip])
            self.edit.setFocus()

    def _drop(self, chips: list[PastedChip]) -> None:
        for chip in chips:
            self._pasted.remove(chip)
            self._chip_row.removeWidget(chip)
            chip.deleteLater()
        self._chips.setVisible(bool(self._pasted))
        self._on_text()

    @Slot()
    def send(self) -> None:
        """Ask for the message to be sent; the field is emptied. Nothing is lost if it cannot be."""
        if not self.can_send:
            return
        text = for_qt(self.text())
        self.edit.set_text("")
        self._drop(list(self._pasted))
        self._intents.send.emit(self._session.session_id, text)

    @Slot()
    def _on_button(self) -> None:
        if self._session.is_busy:
            self._intents.stop.emit(self._session.session_id)
        else:
            self.send()
        self.edit.setFocus()

    @Slot()
    def open_settings(self) -> None:
        """Show the settings of the chat above their button."""
        if self._settings is None:
            self._settings = ChatSettings(self._session, self._intents, self)
        self._settings.load()
        self._settings.adjustSize()
        corner = self.settings_button.mapToGlobal(QPoint(0, -self._settings.height() - 6))
        top = self.window().mapToGlobal(QPoint(0, 0)).y()
        self._settings.move(corner.x(), max(corner.y(), top + 8))
        self._settings.show()
        self._settings.first_field.setFocus()
