"""The middle of the window: tabs, the chat in front or the welcome page, banner and toasts."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal, Slot
from PySide6.QtGui import QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QStackedWidget, QVBoxLayout, QWidget

from app.render.theme import theme
from app.state.intents import Intents
from app.state.session import Sessions
from app.state.status import AppStatus
from app.views.banners import StatusBanner
from app.views.buttons import icon_button
from app.views.chat_page import ChatPage
from app.views.tab_bar import ChatTabs
from app.views.toasts import Toasts
from app.views.transcript_canvas import column_of
from app.views.welcome import WelcomePage

LEAST_WIDTH = 360
Draft = tuple[str, tuple[str, ...]]


class ProgressLine(QWidget):
    """2 px under the tab bar while a model loads or is fetched."""

    def __init__(self, status: AppStatus, parent: QWidget) -> None:
        super().__init__(parent)
        self._status = status
        self.setFixedHeight(2)
        self.setAccessibleName("Loading the model")
        status.changed.connect(self._show_state)
        self._show_state()

    @Slot()
    def _show_state(self) -> None:
        self.setVisible(self._status.phase in ("loading", "fetching"))
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), theme().color("background.selected"))
        width = round(self.width() * max(0.02, min(1.0, self._status.fraction)))
        painter.fillRect(0, 0, width, 2, theme().color("accent.base"))


class ChatArea(QWidget):
    """Keeps one page for each open tab.

    Signals:
        open_model_wanted: the user wants to pick a model's file or folder.
        list_wanted, panel_wanted: the buttons at the ends of the tab row.
    """

    open_model_wanted = Signal()
    list_wanted = Signal()
    panel_wanted = Signal()

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
        self._pages: dict[str, ChatPage] = {}
        self._drafts: dict[str, Draft] = {}  # of closed tabs
        self.setMinimumWidth(LEAST_WIDTH)
        self.setProperty("surface", "content")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._build()
        self.toasts = Toasts(status, intents, self)
        sessions.tab_opened.connect(self._on_opened)
        sessions.tab_closed.connect(self._on_closed)
        sessions.current_changed.connect(self._on_current)
        status.changed.connect(self.arrange)
        for session_id in sessions.tabs:
            self._on_opened(session_id)
        self._on_current(sessions.current_id)

    def _build(self) -> None:
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(self._build_tab_row())
        self.progress = ProgressLine(self._status, self)
        column.addWidget(self.progress)
        self._banner_room = QWidget(self)
        self._banner_room.hide()
        column.addWidget(self._banner_room)
        self.stack = QStackedWidget(self)
        column.addWidget(self.stack, 1)
        self.welcome = WelcomePage(self._sessions, self._status, self._intents, self.stack)
        self.welcome.open_model_wanted.connect(self.open_model_wanted)
        self.stack.addWidget(self.welcome)
        self.banner = StatusBanner(self._status, self._intents, self._banner_room)
        self.banner.open_model_wanted.connect(self.open_model_wanted)
        self.banner.close_button.clicked.connect(self.arrange)

    def _build_tab_row(self) -> QWidget:
        self._tab_row = TabRow(self)
        row = QHBoxLayout(self._tab_row)
        row.setContentsMargins(0, 0, 8, 0)
        row.setSpacing(0)
        self.list_button = icon_button("panel-left", "Chat list (Ctrl+B)", self._tab_row)
        self.list_button.clicked.connect(self.list_wanted)
        self.list_button.hide()
        self.tabs = ChatTabs(self._sessions, self._intents, self._tab_row)
        self.new_button = icon_button("plus", "New chat (Ctrl+T)", self._tab_row)
        self.new_button.clicked.connect(self._intents.new_chat)
        self.panel_button = icon_button("panel-right", "Memory panel (Ctrl+J)", self._tab_row)
        self.panel_button.clicked.connect(self.panel_wanted)
        left = QHBoxLayout()
        left.addWidget(self.list_button)
        row.addLayout(left)
        row.addWidget(self.tabs)
        row.addSpacing(6)
        row.addWidget(self.new_button)
        row.addStretch(1)
        row.addWidget(self.panel_button)
        return self._tab_row

    # --- pages -----------------------------------------------------------------------------

    @property
    def current_page(self) -> ChatPage | None:
        return self._pages.get(self._sessions.current_id)

    def page(self, session_id: str) -> ChatPage | None:
        return self._pages.get(session_id)

    @Slot(str)
    def _on_opened(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is None or session_id in self._pages:
            return
        page = ChatPage(session, self._status, self._intents, self.stack)
        page.composer.height_changed.connect(self._arrange_toasts)
        if session_id in self._drafts:
            page.composer.set_draft(*self._drafts.pop(session_id))
        self._pages[session_id] = page
        self.stack.addWidget(page)

    @Slot(str)
    def _on_closed(self, session_id: str) -> None:
        page = self._pages.pop(session_id, None)
        if page is None:
            return
        draft = page.composer.draft()
        if draft != ("", ()):
            self._drafts[session_id] = draft
        self.stack.removeWidget(page)
        page.deleteLater()

    @Slot(str)
    def _on_current(self, session_id: str) -> None:
        page = self._pages.get(session_id)
        self.stack.setCurrentWidget(page or self.welcome)
        self.arrange()
        if page is not None:
            page.composer.edit.setFocus()
        else:
            self.welcome.send_button.setFocus()

    # --- places ----------------------------------------------------------------------------

    @Slot()
    def arrange(self) -> None:
        """Put the banner on the reading column and the toasts above the composer."""
        left, width = column_of(self.width(), self.window().width())
        is_needed = self.banner.is_needed and self.banner.isVisibleTo(self._banner_room)
        in_row = self.current_page is None and self._status.phase == "failed"
        shown = is_needed and not in_row  # the welcome page says it in its model row
        self._banner_room.setVisible(shown)
        if shown:
            layout = self.banner.layout()
            wide = width + 32
            height = max(40, layout.heightForWidth(wide) if layout is not None else 40)
            self._banner_room.setFixedHeight(height + 16)
            self.banner.setGeometry(left - 16, 8, wide, height)
        self._arrange_toasts()

    @Slot()
    def _arrange_toasts(self) -> None:
        page = self.current_page
        bottom = page.composer.wanted_height() + 16 + 12 if page is not None else 24
        self.toasts.arrange(bottom)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.tabs.relayout()
        self.arrange()


class TabRow(QWidget):
    """The ground of the tab bar: chrome with a hairline at its foot."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setFixedHeight(int(theme().size("tab_bar")))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), theme().color("background.chrome"))
        line = theme().color("hairline")
        painter.fillRect(0, self.height() - 1, self.width(), 1, line)
