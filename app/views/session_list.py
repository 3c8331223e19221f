"""The list of chats at the left: search, groups by day, rename in place, delete; also as a rail."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QModelIndex, QPoint, QSize, Qt, Signal, Slot
from PySide6.QtGui import QKeyEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QListView,
    QMenu,
    QVBoxLayout,
    QWidget,
)

from app.render.icons import icon
from app.render.theme import theme
from app.state.intents import Intents
from app.state.session import Sessions
from app.state.session_list import Role, SessionListModel
from app.views.buttons import icon_button
from app.views.chat_rows import ChatRow


class ChatList(QListView):
    """The rows. Enter or a click opens, F2 renames, Delete deletes."""

    def __init__(self, model: SessionListModel, intents: Intents, parent: QWidget) -> None:
        super().__init__(parent)
        self._chats = model
        self._intents = intents
        self.rows = ChatRow(self)
        self.setItemDelegate(self.rows)
        self.setModel(model)
        self.setMouseTracking(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.customContextMenuRequested.connect(self._on_menu)
        self.clicked.connect(self._on_open)
        self.setAccessibleName("Chats")

    def rename(self, session_id: str, title: str) -> None:
        self._intents.rename.emit(session_id, title)

    def edit_title(self, session_id: str) -> None:
        row = self._chats.row_of(session_id)
        if row >= 0:
            self.setCurrentIndex(self._chats.index(row))
            self.edit(self._chats.index(row))

    @Slot(QModelIndex)
    def _on_open(self, index: QModelIndex) -> None:
        session_id = index.data(Role.SESSION_ID)
        if session_id:
            self._intents.open_chat.emit(session_id)

    def event(self, event: QEvent) -> bool:
        """Keep F2 for the row with the focus: the window's F2 means the chat in front."""
        is_override = event.type() == QEvent.Type.ShortcutOverride
        if is_override and isinstance(event, QKeyEvent) and event.key() == Qt.Key.Key_F2:
            event.accept()
            return True
        return bool(super().event(event))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        index = self.currentIndex()
        session_id = index.data(Role.SESSION_ID) if index.isValid() else None
        if self.state() == QAbstractItemView.State.EditingState:
            return  # the Enter that ends a renaming comes here too, and must not open the chat
        if session_id and event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._on_open(index)
        elif session_id and event.key() == Qt.Key.Key_Delete:
            self._intents.delete.emit(session_id)
        elif session_id and event.key() == Qt.Key.Key_F2:
            self.edit(index)
        else:
            super().keyPressEvent(event)

    @Slot(QPoint)
    def _on_menu(self, position: QPoint) -> None:
        session_id = self.indexAt(position).data(Role.SESSION_ID)
        if session_id:
            self.menu_for(session_id).popup(self.viewport().mapToGlobal(position))

    def menu_for(self, session_id: str) -> QMenu:
        """What can be done with one chat. Shown with popup(): exec() would break the loop."""
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        intents = self._intents
        menu.addAction("Open", lambda: intents.open_chat.emit(session_id))
        # The key stands in the text: a second shortcut of its own would be ambiguous.
        menu.addAction(icon("pencil"), "Rename\tF2", lambda: self.edit_title(session_id))
        self._add_pin(menu, session_id)
        menu.addSeparator()
        trash = icon("trash-2", "error.base")
        menu.addAction(trash, "Delete\tDel", lambda: intents.delete.emit(session_id))
        return menu

    def _add_pin(self, menu: QMenu, session_id: str) -> None:
        session = self._chats.session_at(self._chats.row_of(session_id))
        is_pinned = session is not None and session.is_pinned
        intents = self._intents
        pin = menu.addAction(
            "Keep in memory", lambda: intents.set_pinned.emit(session_id, not is_pinned)
        )
        pin.setCheckable(True)
        pin.setChecked(is_pinned)
        pin.setToolTip("The chat's blocks stay in the pool until you quit")
        menu.setToolTipsVisible(True)


class SearchField(QLineEdit):
    """A line edit with a magnifying glass at the left and its key at the right."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setPlaceholderText("Search chats")
        self.setAccessibleName("Search chats by title")
        self.setClearButtonEnabled(True)
        self.setTextMargins(20, 0, 0, 0)

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        painter = QPainter(self)
        icon("search").paint(painter, 9, (self.height() - 14) // 2, 14, 14)
        if not self.text() and self.width() > 170:
            painter.setFont(theme().font("small", "regular"))
            painter.setPen(theme().color("text.tertiary"))
            flags = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
            painter.drawText(self.rect().adjusted(0, 0, -10, 0), int(flags), "Ctrl K")


class SessionListView(QWidget):
    """The whole left pane.

    Signals:
        toggle_wanted: the user wants the list narrower or wider.
        settings_wanted(position): open the menu of settings at this global position.
        search_wanted: in the rail, the magnifying glass was pressed.
    """

    toggle_wanted = Signal()
    settings_wanted = Signal(QPoint)
    search_wanted = Signal()

    def __init__(self, sessions: Sessions, intents: Intents, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._sessions = sessions
        self._intents = intents
        self.model = SessionListModel(sessions, self)
        self.is_rail = False
        self.setProperty("surface", "chrome")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self._build()
        self.model.rebuilt.connect(self._on_rebuilt)
        sessions.current_changed.connect(self._select)
        self._on_rebuilt()

    def _build(self) -> None:
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(0)
        self._build_head()
        self.search = SearchField(self)
        self.search.textChanged.connect(self._on_search)
        self._search_box = QWidget(self)
        box = QHBoxLayout(self._search_box)
        box.setContentsMargins(12, 4, 12, 4)
        box.addWidget(self.search)
        self._column.addWidget(self._search_box)
        self.empty = QLabel(self)
        self.empty.setProperty("tone", "secondary")
        self.empty.setFont(theme().font("small", "regular"))
        self.empty.setWordWrap(True)
        self.empty.setTextFormat(Qt.TextFormat.PlainText)
        self.empty.setContentsMargins(16, 16, 16, 0)
        self._column.addWidget(self.empty)
        self.list = ChatList(self.model, self._intents, self)
        self._column.addWidget(self.list, 1)
        self._column.addStretch(0)
        self._build_foot()

    def _build_head(self) -> None:
        self._head = QWidget(self)
        self._head_row = QHBoxLayout(self._head)
        self._head_row.setContentsMargins(12, 6, 8, 6)
        self.toggle = icon_button("panel-left", "Chat list (Ctrl+B)", self._head)
        self.toggle.clicked.connect(self.toggle_wanted)
        self.new = icon_button("square-pen", "New chat (Ctrl+N)", self._head)
        self.new.clicked.connect(self._intents.new_chat)
        self._head_row.addWidget(self.toggle)
        self._head_row.addStretch(1)
        self._head_row.addWidget(self.new)
        self._head.setFixedHeight(int(theme().size("tab_bar")))
        self._column.addWidget(self._head)
        self._rail_tools = QWidget(self)
        tools = QVBoxLayout(self._rail_tools)
        tools.setContentsMargins(10, 4, 10, 4)
        tools.setSpacing(4)
        self.rail_new = icon_button("square-pen", "New chat (Ctrl+N)", self._rail_tools)
        self.rail_new.clicked.connect(self._intents.new_chat)
        self.rail_search = icon_button("search", "Search chats (Ctrl+K)", self._rail_tools)
        self.rail_search.clicked.connect(self.search_wanted)
        tools.addWidget(self.rail_new)
        tools.addWidget(self.rail_search)
        self._rail_tools.hide()
        self._column.addWidget(self._rail_tools)

    def _build_foot(self) -> None:
        line = QFrame(self)
        line.setProperty("kind", "hairline")
        line.setFixedHeight(1)
        self._column.addWidget(line)
        foot = QWidget(self)
        row = QHBoxLayout(foot)
        row.setContentsMargins(10, 8, 10, 8)
        row.addStretch(1)
        self.settings = icon_button("settings-2", "Settings", foot)
        self.settings.clicked.connect(self._on_settings)
        row.addWidget(self.settings)
        self._column.addWidget(foot)

    def sizeHint(self) -> QSize:
        return QSize(int(theme().size("rail" if self.is_rail else "sidebar")), 400)

    def set_rail(self, is_rail: bool) -> None:
        """Show chips only, in a narrow strip."""
        self.is_rail = self.list.rows.is_rail = is_rail
        self._search_box.setVisible(not is_rail)
        self._rail_tools.setVisible(is_rail)
        self.new.setVisible(not is_rail)
        self._head_row.setContentsMargins(10 if is_rail else 12, 6, 8, 6)
        self._show_empty()
        self.list.doItemsLayout()

    def focus_search(self) -> None:
        self.search.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.search.selectAll()

    @Slot()
    def _on_settings(self) -> None:
        self.settings_wanted.emit(self.settings.mapToGlobal(QPoint(0, 0)))

    @Slot(str)
    def _on_search(self, text: str) -> None:
        self.model.set_filter(text)

    @Slot()
    def _on_rebuilt(self) -> None:
        self._show_empty()
        self._select(self._sessions.current_id)

    def _show_empty(self) -> None:
        none_shown = self.model.num_chats == 0
        if self.model.filter_text:
            self.empty.setText(f"Nothing found for “{self.search.text().strip()[:60]}”.")
        else:
            self.empty.setText("Your chats will be listed here, newest first.")
        self.empty.setVisible(none_shown and not self.is_rail)
        self.list.setVisible(not none_shown or self.is_rail)

    @Slot(str)
    def _select(self, session_id: str) -> None:
        row = self.model.row_of(session_id)
        if row >= 0 and self.list.state() != QAbstractItemView.State.EditingState:
            self.list.setCurrentIndex(self.model.index(row))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if self.search.hasFocus() and event.key() == Qt.Key.Key_Escape and self.search.text():
            self.search.clear()
        elif self.search.hasFocus() and event.key() in (Qt.Key.Key_Down, Qt.Key.Key_Return):
            self._go_to_first()
        else:
            super().keyPressEvent(event)

    def _go_to_first(self) -> None:
        for row in range(self.model.rowCount()):
            if self.model.session_at(row):
                self.list.setCurrentIndex(self.model.index(row))
                self.list.setFocus()
                return
