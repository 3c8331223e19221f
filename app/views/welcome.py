"""The page without tabs: the model in one row, three prompts to edit, and one primary button."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, Qt, Signal, Slot
from PySide6.QtGui import QKeyEvent, QPainter, QPaintEvent, QShowEvent
from PySide6.QtWidgets import (
    QAbstractButton,
    QFrame,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from app.render.chip import paint_chip
from app.render.theme import theme
from app.state.intents import Intents
from app.state.session import Sessions
from app.state.status import AppStatus
from app.views.buttons import icon_button
from app.views.model_row import ModelRow

PROMPTS = (
    "Write a packing list for three days in the mountains in October.",
    "Explain a hash table to a ten-year-old, with a cloakroom.",
    "Give me five openings for a story that starts in a lift.",
)
WIDTH = 560
MOSAIC = ((0, 0, 2), (1, None, 2), (1, 1, -2))  # owners; -n is the cached tone of owner n


class Mosaic(QWidget):
    """Nine tiles: the mark of the application."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setFixedSize(34, 34)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        for row, owners in enumerate(MOSAIC):
            for column, owner in enumerate(owners):
                if owner is None:
                    painter.setBrush(theme().color("pool.free"))
                else:
                    tone = "cached" if owner < 0 else "active"
                    painter.setBrush(theme().owner(abs(owner), tone))
                painter.drawRoundedRect(QRectF(column * 11.5, row * 11.5, 10.5, 10.5), 2, 2)


class ChipMark(QWidget):
    """The chip that a chat will get."""

    def __init__(self, owner: int, parent: QWidget) -> None:
        super().__init__(parent)
        self.owner = owner
        self.setFixedSize(12, 12)

    def paintEvent(self, event: QPaintEvent) -> None:
        paint_chip(QPainter(self), QPointF(0, 0), self.owner, "active", 1.0)


class PromptEdit(QLineEdit):
    """Keeps Enter to itself: Qt's own passes it on, and the page would send a second time."""

    def keyPressEvent(self, event: QKeyEvent) -> None:
        super().keyPressEvent(event)
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            event.accept()


class PromptRow(QWidget):
    """One prompt: chip, text, pencil."""

    def __init__(self, owner: int, text: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setFixedHeight(48)
        row = QHBoxLayout(self)
        row.setContentsMargins(15, 0, 8, 0)
        row.setSpacing(12)
        self.chip = ChipMark(owner, self)
        self.edit = PromptEdit(text, self)
        self.edit.setProperty("kind", "bare")
        self.edit.setAccessibleName(f"Prompt {owner + 1}")
        self.edit.setMaxLength(4000)
        self.edit.setCursorPosition(0)
        pencil = icon_button("pencil", f"Edit prompt {owner + 1}", self)
        pencil.clicked.connect(self._on_edit)
        row.addWidget(self.chip)
        row.addWidget(self.edit, 1)
        row.addWidget(pencil)

    @Slot()
    def _on_edit(self) -> None:
        self.edit.setFocus()
        self.edit.selectAll()


class WelcomePage(QScrollArea):
    """Shown while no tab is open.

    Signals:
        open_model_wanted: the user wants to pick a model's file or folder.
    """

    open_model_wanted = Signal()

    def __init__(
        self,
        sessions: Sessions,
        status: AppStatus,
        intents: Intents,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._sessions = sessions
        self._status = status
        self._intents = intents
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setWidgetResizable(True)
        self._page = QWidget(self)
        self._page.setProperty("surface", "content")
        self._page.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setWidget(self._page)
        self._build()
        status.changed.connect(self._show_state)
        self._show_state()

    def _build(self) -> None:
        outer = QVBoxLayout(self._page)
        outer.setContentsMargins(24, 24, 24, 16)
        outer.addStretch(3)
        middle = QHBoxLayout()
        middle.addStretch(1)
        body = QWidget(self._page)
        body.setMaximumWidth(WIDTH)
        middle.addWidget(body, 100)
        middle.addStretch(1)
        outer.addLayout(middle)
        outer.addStretch(4)
        foot = QLabel("Nothing you write leaves this computer.", self._page)
        foot.setProperty("tone", "tertiary")
        foot.setFont(theme().font("small", "regular"))
        foot.setAlignment(Qt.AlignmentFlag.AlignCenter)
        outer.addWidget(foot)
        column = QVBoxLayout(body)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        self._build_words(column, body)
        self.model_row = ModelRow(self._status, self._intents, body)
        self.model_row.open_model_wanted.connect(self.open_model_wanted)
        column.addWidget(self.model_row)
        column.addSpacing(12)
        self._build_prompts(column, body)
        column.addSpacing(20)
        self._build_buttons(column, body)

    def _build_words(self, column: QVBoxLayout, body: QWidget) -> None:
        column.addWidget(Mosaic(body))
        column.addSpacing(20)
        title = QLabel("Send three questions at once", body)
        title.setFont(theme().font("large", "semibold"))
        column.addWidget(title)
        column.addSpacing(8)
        words = QLabel(
            "<div style='line-height: 128%'>Tessera answers several chats at the same time, from "
            "one engine on this computer. The memory panel shows their memory: a tile is a block "
            "of tokens, in the colour of the chat that holds it.</div>",
            body,
        )
        words.setTextFormat(Qt.TextFormat.RichText)
        words.setWordWrap(True)
        words.setProperty("tone", "secondary")
        column.addWidget(words)
        column.addSpacing(20)

    def _build_prompts(self, column: QVBoxLayout, body: QWidget) -> None:
        card = QFrame(body)
        card.setProperty("kind", "card")
        rows = QVBoxLayout(card)
        rows.setContentsMargins(1, 1, 1, 1)
        rows.setSpacing(0)
        self.prompts: list[PromptRow] = []
        for number, text in enumerate(PROMPTS):
            if number:
                line = QFrame(card)
                line.setProperty("kind", "hairline")
                line.setFixedHeight(1)
                rows.addWidget(line)
            row = PromptRow(number, text, card)
            row.edit.returnPressed.connect(self.send_all)
            row.edit.textChanged.connect(self._show_state)
            self.prompts.append(row)
            rows.addWidget(row)
        column.addWidget(card)

    def _build_buttons(self, column: QVBoxLayout, body: QWidget) -> None:
        row = QHBoxLayout()
        row.setSpacing(12)
        self.send_button = QPushButton("Send all three", body)
        self.send_button.setProperty("kind", "primary")
        self.send_button.clicked.connect(self.send_all)
        self.enter_hint = QLabel("Enter", body)
        self.enter_hint.setProperty("tone", "tertiary")
        self.enter_hint.setFont(theme().font("small", "regular"))
        empty = QPushButton("Start with an empty chat", body)
        empty.setProperty("kind", "plain")
        empty.clicked.connect(self._intents.new_chat)
        self.empty_button = empty
        row.addWidget(self.send_button)
        row.addWidget(self.enter_hint)
        row.addStretch(1)
        row.addWidget(empty)
        column.addLayout(row)

    def texts(self) -> list[str]:
        """The prompts that are not empty."""
        return [row.edit.text().strip() for row in self.prompts if row.edit.text().strip()]

    def _free_owners(self) -> list[int]:
        """The numbers that the next chats will get."""
        taken = {session.owner for session in self._sessions.all}
        return [number for number in range(len(taken) + len(PROMPTS)) if number not in taken]

    @Slot()
    def _show_state(self, *_: object) -> None:
        number = len(self.texts())
        words = {0: "Send", 1: "Send one", 2: "Send both", 3: "Send all three"}
        self.send_button.setText(words[number])
        can_send = self._status.phase == "ready" and number > 0
        self.send_button.setEnabled(can_send)
        self.enter_hint.setVisible(can_send)
        for row, owner in zip(self.prompts, self._free_owners(), strict=False):
            if row.chip.owner != owner:
                row.chip.owner = owner
                row.chip.update()

    @Slot()
    def send_all(self) -> None:
        """Ask for one chat per prompt, sent together."""
        if self._status.phase == "ready" and self.texts():
            self._intents.send_all.emit(self.texts())

    def keyPressEvent(self, event: QKeyEvent) -> None:
        focused = self.focusWidget()
        if event.key() not in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            super().keyPressEvent(event)
        elif isinstance(focused, QAbstractButton) and focused.hasFocus():
            focused.click()  # Qt's own buttons know only the space bar, and pass Enter on
        else:
            self.send_all()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._show_state()
