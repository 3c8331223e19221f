"""One chat's page: its transcript above its composer, both on the reading column."""

from __future__ import annotations

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QLabel, QWidget

from app.render.theme import theme
from app.state.intents import Intents
from app.state.session import Session
from app.state.status import AppStatus
from app.views.composer import Composer
from app.views.transcript import TranscriptView
from app.views.transcript_canvas import column_of

BOTTOM = 16
INSET = 16


class ChatPage(QWidget):
    """Places transcript and composer by hand: the composer grows without moving the text."""

    def __init__(
        self, session: Session, status: AppStatus, intents: Intents, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.session = session
        self.setProperty("surface", "content")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.transcript = TranscriptView(session, intents, self)
        self.empty = QLabel("Write the first message. Shift+Enter starts a new line.", self)
        self.empty.setProperty("tone", "tertiary")
        self.empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.empty.setWordWrap(True)
        self.composer = Composer(session, status, intents, self)
        self.composer.height_changed.connect(self.arrange)
        session.turn_added.connect(self._show_empty)
        self._show_empty()
        self.setFocusProxy(self.composer.edit)

    @Slot()
    def _show_empty(self, *_: object) -> None:
        is_empty = not self.session.record.turns
        self.empty.setVisible(is_empty)
        self.transcript.setVisible(not is_empty)

    @Slot()
    def arrange(self) -> None:
        """Put the composer at the foot of the column and give the rest to the transcript."""
        left, width = column_of(self.width(), self.window().width())
        # The scroll bar takes its room from the transcript alone, so the edges stay aligned.
        height = min(self.composer.wanted_height(), max(76, self.height() - 120))
        top = self.height() - BOTTOM - height
        self.composer.setGeometry(left - INSET, top, width + 2 * INSET, height)
        self.transcript.setGeometry(0, 0, self.width(), max(0, top - 8))
        line = theme().line("base")
        self.empty.setGeometry(left, max(0, (top - 2 * line) // 2), width, 2 * line)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.arrange()
