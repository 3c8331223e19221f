"""Settings for one chat: system prompt and sampling, checked in place, in a panel that pops up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from PySide6.QtCore import QMimeData, Qt, Slot
from PySide6.QtGui import QHideEvent
from PySide6.QtWidgets import (
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QPlainTextEdit,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

from app.records import Sampling
from app.render.plain import for_qt, letters_words
from app.render.theme import theme
from app.state.intents import Intents
from app.state.session import Session
from app.views.buttons import set_state
from app.views.composer_edit import MAX_PASTE_CHARS, grows_long, is_long

WIDTH = 420
MAX_SEED = 2**63 - 1
MAX_COUNT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Field:
    """One sampling value: its name on screen, in the record, and what is allowed."""

    label: str
    name: str
    low: float
    high: float
    is_whole: bool = False
    may_be_empty: bool = False
    hint: str = ""

    def read(self, text: str) -> float | int | None:
        """The value that `text` names.

        Raises:
            ValueError: with the sentence to show.
        """
        text = text.strip().replace(",", ".")
        if not text and self.may_be_empty:
            return None
        wrong = f"{self.label}: {self._allowed()}."
        try:
            value = int(text) if self.is_whole else float(text)
        except ValueError:
            raise ValueError(wrong) from None
        if not self.low <= value <= self.high:
            raise ValueError(wrong)
        return value

    def _allowed(self) -> str:
        kind = "a whole number" if self.is_whole else "a number"
        if self.high >= MAX_COUNT:
            words = f"{kind} from {self.low:g} up"
        else:
            words = f"{kind} from {self.low:g} to {self.high:g}"
        return words + (", or nothing" if self.may_be_empty else "")


FIELDS = (
    Field("Temperature", "temperature", 0, 100, hint="0 = always the likeliest"),
    Field("Top-k", "top_k", 0, MAX_COUNT, is_whole=True, hint="0 = off"),
    Field("Top-p", "top_p", 0, 1, hint="1 = off"),
    Field("Min-p", "min_p", 0, 1, hint="0 = off"),
    Field("Seed", "seed", 0, MAX_SEED, is_whole=True, may_be_empty=True, hint="Random"),
    Field("Max tokens", "max_tokens", 1, MAX_COUNT, True, True, hint="To the end"),
)


class PromptEdit(QPlainTextEdit):
    """The system prompt; refuses what a text edit cannot hold without freezing."""

    def __init__(self, refuse: Callable[[], None], parent: QWidget) -> None:
        super().__init__(parent)
        self._refuse = refuse
        self.setTabChangesFocus(True)
        self.setAccessibleName("System prompt")
        self.setFixedHeight(96)

    def insertFromMimeData(self, source: QMimeData) -> None:
        text = source.text()
        num_chars = self.document().characterCount() + len(text)
        if num_chars > MAX_PASTE_CHARS or grows_long(self.textCursor(), text):
            self._refuse()
        else:
            super().insertFromMimeData(source)


class ChatSettings(QFrame):
    """Values are asked for through `intents` as soon as they are valid and differ."""

    def __init__(self, session: Session, intents: Intents, parent: QWidget) -> None:
        super().__init__(parent, Qt.WindowType.Popup)
        self._session = session
        self._intents = intents
        self._edits: dict[str, QLineEdit] = {}
        self._shown_prompt = ""  # as the field first held it, which need not be as it is stored
        self.setProperty("kind", "popup")
        self.setAccessibleName("Settings for this chat")
        self.setFixedWidth(WIDTH)
        self._build()

    def _build(self) -> None:
        column = QVBoxLayout(self)
        column.setContentsMargins(16, 12, 16, 16)
        column.setSpacing(8)
        title = QLabel("Settings for this chat", self)
        title.setFont(theme().font("base", "semibold"))
        column.addWidget(title)
        self._build_prompt(column)
        self._build_fields(column)
        self._build_foot(column)

    def _build_prompt(self, column: QVBoxLayout) -> None:
        head = QHBoxLayout()
        head.addWidget(self._label("System prompt"), 1)
        self.remove_button = self._small_button("Remove")
        self.remove_button.setAccessibleName("Remove the system prompt")
        self.remove_button.clicked.connect(self._on_remove)
        head.addWidget(self.remove_button)
        column.addLayout(head)
        self.prompt = PromptEdit(self._on_refused, self)
        self.first_field = self.prompt
        column.addWidget(self.prompt)

    def _build_fields(self, column: QVBoxLayout) -> None:
        grid = QGridLayout()
        grid.setHorizontalSpacing(12)
        grid.setVerticalSpacing(4)
        for number, field in enumerate(FIELDS):
            row, place = divmod(number, 3)
            edit = QLineEdit(self)
            edit.setAccessibleName(field.label)
            edit.setPlaceholderText(field.hint)
            edit.setToolTip(field.hint)
            edit.editingFinished.connect(self.save)
            edit.textEdited.connect(self._check)
            self._edits[field.name] = edit
            grid.addWidget(self._label(field.label), 2 * row, place)
            grid.addWidget(edit, 2 * row + 1, place)
        column.addLayout(grid)

    def _build_foot(self, column: QVBoxLayout) -> None:
        self.error = QLabel(self)
        self.error.setProperty("tone", "error")
        self.error.setFont(theme().font("small", "regular"))
        self.error.setWordWrap(True)
        self.error.setMinimumHeight(theme().line("small"))
        foot = QHBoxLayout()
        foot.addWidget(self.error, 1)
        defaults = self._small_button("Defaults")
        defaults.clicked.connect(self._on_defaults)
        foot.addWidget(defaults)
        column.addLayout(foot)

    def _small_button(self, text: str) -> QPushButton:
        button = QPushButton(text, self)
        button.setProperty("kind", "plain")
        button.setProperty("compact", "true")
        return button

    def _label(self, text: str) -> QLabel:
        label = QLabel(text, self)
        label.setProperty("tone", "secondary")
        label.setFont(theme().font("small", "regular"))
        return label

    def load(self) -> None:
        """Show what the chat has now."""
        self._show_prompt(self._session.record.system_prompt)
        self._show(self._session.sampling)

    def _show_prompt(self, prompt: str) -> None:
        """Put a prompt into the field; one that would freeze it (an import may bring any) stays
        out: it can be removed, not edited."""
        is_kept = is_long(prompt)
        size = letters_words(len(prompt.encode("utf-8", "replace")))
        words = f"{size} of text, too long to be edited here" if is_kept else "No system prompt"
        self.prompt.setPlaceholderText(words)
        self.prompt.setPlainText("" if is_kept else for_qt(prompt))
        self.prompt.setReadOnly(is_kept)
        self.remove_button.setVisible(is_kept)
        self._shown_prompt = self.prompt.toPlainText()

    def _show(self, sampling: Sampling) -> None:
        for field in FIELDS:
            value = getattr(sampling, field.name)
            words = f"{value:.15g}" if isinstance(value, float) else str(value)
            self._edits[field.name].setText("" if value is None else words)
        self._check()

    def edit_of(self, name: str) -> QLineEdit:
        """The field of a sampling value, by its name in the record."""
        return self._edits[name]

    def _values(self) -> tuple[Sampling, list[str]]:
        """What the valid fields say, and a sentence for each field that is not valid."""
        sampling, wrong = self._session.sampling, []
        for field in FIELDS:
            edit = self._edits[field.name]
            try:
                change: dict[str, Any] = {field.name: field.read(edit.text())}
                sampling = replace(sampling, **change)
                set_state(edit, "state", "")
            except ValueError as error:
                wrong.append(str(error))
                set_state(edit, "state", "error")
        return sampling, wrong

    @Slot()
    def _check(self, *_: object) -> None:
        wrong = self._values()[1]
        self.error.setText(wrong[0] if wrong else "")

    @Slot()
    def save(self) -> None:
        """Ask for what is valid and differs from what the chat has."""
        sampling, _ = self._values()
        session_id = self._session.session_id
        if sampling != self._session.sampling:
            self._intents.set_sampling.emit(session_id, sampling)
        prompt = self.prompt.toPlainText()
        if prompt != self._shown_prompt:
            self._shown_prompt = prompt
            self._intents.set_system_prompt.emit(session_id, for_qt(prompt))

    def hideEvent(self, event: QHideEvent) -> None:
        self.save()
        super().hideEvent(event)

    @Slot()
    def _on_defaults(self) -> None:
        self._show(Sampling())
        self.save()

    @Slot()
    def _on_remove(self) -> None:
        self._intents.set_system_prompt.emit(self._session.session_id, "")
        self._show_prompt("")
        self.prompt.setFocus()

    def _on_refused(self) -> None:
        self.error.setText("That text is too long for a system prompt; send it as a message.")
