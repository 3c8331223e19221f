"""The tabs above the chat: chip, title, close; dragged to reorder, middle button closes."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPointF, QRect, QRectF, QSize, Qt, Signal, Slot
from PySide6.QtGui import QFontMetricsF, QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QTabBar, QWidget

from app.render.chip import paint_chip
from app.render.icons import icon
from app.render.plain import tool_tip
from app.render.theme import theme
from app.state.intents import Intents
from app.state.session import Session, Sessions
from app.state.session_list import chip_of

PAD = 12
CLOSE = 24
TEXT_LEFT = PAD + 12 + 8


class ChatTabs(QTabBar):
    """One tab for each open chat.

    Signals:
        chosen(session_id): the user went to another tab.
    """

    chosen = Signal(str)

    def __init__(self, sessions: Sessions, intents: Intents, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._sessions = sessions
        self._intents = intents
        self._hovered = -1
        self._to_close = ""  # the chat whose cross, or whose tab with the middle button, is down
        self._following = False  # the tabs change because the model did
        self.setMovable(True)
        self.setExpanding(False)
        self.setDrawBase(False)
        self.setDocumentMode(True)
        self.setUsesScrollButtons(True)
        self.setElideMode(Qt.TextElideMode.ElideRight)
        self.setMouseTracking(True)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.setFixedHeight(int(theme().size("tab_bar")))
        self.setAccessibleName("Open chats")
        self.hide()
        sessions.tab_opened.connect(self._on_opened)
        sessions.tab_closed.connect(self._on_closed)
        sessions.current_changed.connect(self._on_current)
        sessions.tab_moved.connect(self._on_model_moved)
        self.currentChanged.connect(self._on_chosen)
        self.tabMoved.connect(self._on_dragged)
        for session_id in sessions.tabs:
            self._on_opened(session_id)
        self._on_current(sessions.current_id)

    # --- in step with the model --------------------------------------------------------------

    def session_id(self, index: int) -> str:
        return str(self.tabData(index) or "")

    def index_of(self, session_id: str) -> int:
        return next((i for i in range(self.count()) if self.tabData(i) == session_id), -1)

    @Slot(str)
    def _on_opened(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is None:
            return
        self._following = True
        index = self.insertTab(self._sessions.tabs.index(session_id), "")
        self.setTabData(index, session_id)
        self._following = False
        session.changed.connect(self._on_session)
        self._name(index, session)
        self.show()

    @Slot(str)
    def _on_closed(self, session_id: str) -> None:
        index = self.index_of(session_id)
        session = self._sessions.get(session_id)
        if session is not None:
            session.changed.disconnect(self._on_session)
        if index >= 0:
            self._following = True
            self.removeTab(index)
            self._following = False
        self.setVisible(self.count() > 0)

    @Slot(str)
    def _on_current(self, session_id: str) -> None:
        self._following = True
        index = self.index_of(session_id)
        if index >= 0:
            self.setCurrentIndex(index)
        self._following = False
        self.relayout()

    @Slot()
    def _on_session(self) -> None:
        session = self.sender()
        if isinstance(session, Session):
            index = self.index_of(session.session_id)
            if index >= 0:
                self._name(index, session)
                self.update(self.tabRect(index))

    def _name(self, index: int, session: Session) -> None:
        title = session.title.replace("\n", " ")[:200]
        text = title.replace("&", "&&")  # a tab takes one for a key
        if self.tabText(index) != text:
            self.setTabText(index, text)
            self.setTabToolTip(index, tool_tip(title))
            self.setAccessibleTabName(index, title)

    @Slot(str, int)
    def _on_model_moved(self, session_id: str, to: int) -> None:
        index = self.index_of(session_id)
        if index >= 0 and index != to:
            self._following = True
            self.moveTab(index, to)
            self._following = False

    @Slot(int)
    def _on_chosen(self, index: int) -> None:
        if not self._following and index >= 0:
            self.chosen.emit(self.session_id(index))
            self._intents.open_chat.emit(self.session_id(index))

    @Slot(int, int)
    def _on_dragged(self, _from: int, to: int) -> None:
        if not self._following:
            # Sent by number of the tab that now stands at `to`: a drag moves one tab at a time.
            self._intents.move_tab.emit(self.session_id(to), to)

    # --- sizes -------------------------------------------------------------------------------

    def tabSizeHint(self, index: int) -> QSize:
        look = theme()
        wanted = self._wanted(index)
        room = self._room()
        total = sum(self._wanted(i) for i in range(self.count()))
        if total > room and self.count():
            active = self._wanted(self.currentIndex()) if self.currentIndex() >= 0 else 0
            others = max(1, self.count() - 1)
            share = max(look.size("tab_min"), (room - active) / others)
            if index != self.currentIndex():
                wanted = int(min(wanted, share))
        return QSize(int(wanted), int(look.size("tab_bar")))

    def relayout(self) -> None:
        """Ask for the sizes of all tabs again; Qt does so only when a text or font changes."""
        if self.count():
            self.setTabText(0, self.tabText(0))
        self.updateGeometry()

    def _wanted(self, index: int) -> int:
        metrics = QFontMetricsF(theme().font("base", "medium"))
        text = metrics.horizontalAdvance(self.tabText(index)) + TEXT_LEFT + PAD + 2
        if index == self.currentIndex():
            text += CLOSE - 2
        look = theme()
        return int(max(look.size("tab_min"), min(look.size("tab_max"), text)))

    def _room(self) -> int:
        parent = self.parentWidget()
        return max(96, parent.width() - 96) if parent else 800

    def minimumSizeHint(self) -> QSize:
        return QSize(96 if self.count() else 0, int(theme().size("tab_bar")))

    # --- painting ----------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for index in range(self.count()):
            if self.tabRect(index).intersects(event.rect()):
                self._paint_tab(painter, index)

    def _paint_tab(self, painter: QPainter, index: int) -> None:
        look, box = theme(), self.tabRect(index)
        session = self._sessions.get(self.session_id(index))
        if session is None:
            return
        current = index == self.currentIndex()
        if current:
            painter.fillRect(box, look.color("background.content"))
        else:
            under = QRect(box.left(), box.bottom(), box.width(), 1)
            painter.fillRect(under, look.color("hairline"))
        painter.fillRect(QRect(box.right(), box.top(), 1, box.height()), look.color("hairline"))
        place = QPointF(box.left() + PAD, box.center().y() - 5.5)
        if session.status == "failed":
            alert = icon("triangle-alert", "error.base", 14)
            alert.paint(painter, box.left() + PAD - 1, box.center().y() - 6, 14, 14)
        else:
            chip = chip_of(session)
            paint_chip(painter, place, chip.owner, chip.state, chip.fill)
        self._paint_title(painter, index, box, session, current)
        if current or index == self._hovered:
            close = self._close_box(index)
            icon("x", "text.secondary", 14).paint(painter, close.adjusted(5, 5, -5, -5))
        if current and self.hasFocus():
            painter.setPen(QPen(look.color("accent.focus"), 2))
            painter.drawRoundedRect(QRectF(box).adjusted(3, 3, -4, -4), 4, 4)

    def _paint_title(
        self, painter: QPainter, index: int, box: QRect, session: Session, current: bool
    ) -> None:
        look = theme()
        weight = "semibold" if session.unread else "medium" if current else "regular"
        font = look.font("base", weight)
        strong = current or index == self._hovered or session.unread
        painter.setFont(font)
        painter.setPen(look.color("text.primary" if strong else "text.secondary"))
        shows_close = current or index == self._hovered
        right = CLOSE + 6 if shows_close else PAD
        room = QRectF(box).adjusted(TEXT_LEFT, 0, -right, 0)
        title = session.title.replace("\n", " ")[:200]
        text = QFontMetricsF(font).elidedText(title, Qt.TextElideMode.ElideRight, room.width())
        flags = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(room, int(flags), text)

    def _close_box(self, index: int) -> QRect:
        box = self.tabRect(index)
        return QRect(box.right() - CLOSE - 4, box.center().y() - CLOSE // 2 + 1, CLOSE, CLOSE)

    # --- mouse -------------------------------------------------------------------------------

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        hovered = self.tabAt(event.position().toPoint())
        if hovered != self._hovered:
            self._hovered = hovered
            self.update()
        super().mouseMoveEvent(event)

    def leaveEvent(self, event: QEvent) -> None:
        self._hovered = -1
        self.update()
        super().leaveEvent(event)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._to_close = self._closed_at(event)
        if self._to_close or event.button() == Qt.MouseButton.MiddleButton:
            return  # the release closes; a press must not start a drag
        super().mousePressEvent(event)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        pressed, self._to_close = self._to_close, ""
        if not pressed:
            super().mouseReleaseEvent(event)
        elif self._closed_at(event) == pressed:  # tabs move under a pointer: both ends count
            self._intents.close_tab.emit(pressed)

    def _closed_at(self, event: QMouseEvent) -> str:
        """The chat whose tab a press or release of this kind, at this place, closes."""
        position = event.position().toPoint()
        index = self.tabAt(position)
        left = event.button() == Qt.MouseButton.LeftButton
        middle = event.button() == Qt.MouseButton.MiddleButton
        if index >= 0 and (middle or (left and self._close_box(index).contains(position))):
            return self.session_id(index)
        return ""
