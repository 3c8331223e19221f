"""The buttons of a reply: versions, copy, regenerate. One set, placed over one reply at a time."""

from __future__ import annotations

from PySide6.QtCore import Signal, Slot
from PySide6.QtWidgets import QHBoxLayout, QLabel, QWidget

from app.records import TurnRecord
from app.render.theme import theme
from app.views.buttons import icon_button


class ReplyActions(QWidget):
    """Stands at the right end of the line under a reply.

    Signals:
        copy_wanted(turn_index), regenerate_wanted()
        version_wanted(turn_index, version)
    """

    copy_wanted = Signal(int)
    regenerate_wanted = Signal()
    version_wanted = Signal(int, int)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.turn_index = -1
        self._version = 0
        self.previous = icon_button("chevron-left", "Earlier version", self, 14)
        self.following = icon_button("chevron-right", "Later version", self, 14)
        self.count = QLabel(self)
        self.count.setProperty("tone", "secondary")
        self.count.setFont(theme().font("small", "regular"))
        self.copy = icon_button("copy", "Copy reply", self, 14)
        self.regenerate = icon_button("refresh-cw", "Regenerate", self, 14)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(4)
        for part in (self.previous, self.count, self.following, self.copy, self.regenerate):
            row.addWidget(part)
        self.previous.clicked.connect(self._on_previous)
        self.following.clicked.connect(self._on_following)
        self.copy.clicked.connect(self._on_copy)
        self.regenerate.clicked.connect(self.regenerate_wanted)
        self.hide()

    def show_turn(self, turn_index: int, turn: TurnRecord, can_regenerate: bool) -> None:
        """Take the state of a turn; the caller moves the widget."""
        self.turn_index, self._version = turn_index, turn.chosen
        several = len(turn.replies) > 1
        for part in (self.previous, self.count, self.following):
            part.setVisible(several)
        self.count.setText(f"{turn.chosen + 1}/{len(turn.replies)}")
        self.previous.setEnabled(turn.chosen > 0)
        self.following.setEnabled(turn.chosen + 1 < len(turn.replies))
        self.regenerate.setVisible(can_regenerate)
        self.adjustSize()

    @Slot()
    def _on_previous(self) -> None:
        self.version_wanted.emit(self.turn_index, self._version - 1)

    @Slot()
    def _on_following(self) -> None:
        self.version_wanted.emit(self.turn_index, self._version + 1)

    @Slot()
    def _on_copy(self) -> None:
        self.copy_wanted.emit(self.turn_index)
