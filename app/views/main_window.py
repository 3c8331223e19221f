"""MainWindow: list, chats and memory panel side by side, and what gives way in a narrow window."""

from __future__ import annotations

import base64
import binascii
import json

from PySide6.QtCore import QPoint, QSize, Qt, Signal, Slot
from PySide6.QtGui import QCloseEvent, QKeyEvent, QMouseEvent, QPixmap, QResizeEvent
from PySide6.QtWidgets import QFrame, QMainWindow, QSplitter, QVBoxLayout, QWidget

from app.render.theme import ThemeManager, theme
from app.state.intents import Intents
from app.state.pool import PoolModel
from app.state.session import Session, Sessions
from app.state.status import AppStatus
from app.views.buttons import refresh_icons
from app.views.chat_area import ChatArea
from app.views.memory_panel import MemoryPanel
from app.views.pool_strip import PoolStrip
from app.views.session_list import SessionListView
from app.views.status_bar import StatusLine
from app.views.window_actions import WindowActions

LEAST = QSize(640, 480)
FRESH = QSize(1440, 900)
LIST_FROM, PANEL_FROM, RAIL_FROM = 1440, 1100, 900  # widths of the window
LEAST_CHAT = 420  # what list and panel must leave
SLIDE_PANEL = 352
STATE_VERSION = 1


class Scrim(QWidget):
    """Lies under a pane that slid over the chat; a press beside the pane closes it.

    Signals:
        pressed
    """

    pressed = Signal()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self.pressed.emit()


class MainWindow(QMainWindow):
    """Everything on screen. It reads the state and asks through `intents`.

    Attributes:
        panel: the memory panel, for pictures.
        chat_area, chat_list, strip, status_line: the other parts.

    Signals:
        close_requested: the user closes the window; it stays until `allow_close` was called.
    """

    close_requested = Signal()

    def __init__(
        self,
        sessions: Sessions,
        pool: PoolModel,
        status: AppStatus,
        intents: Intents,
        themes: ThemeManager,
    ) -> None:
        super().__init__()
        self._sessions = sessions
        self._intents = intents
        self._may_close = False
        self._list_choice: bool | None = None  # wide list wanted by the user, None = by width
        self._panel_choice: bool | None = None  # panel wanted by the user
        self._list_width = int(theme().size("sidebar"))
        self._panel_width = 0  # set by hand, 0 = by width
        self._titled: Session | None = None  # the chat whose title the window bears
        self._over: QWidget | None = None  # the pane that slid over the chat
        self._mode = ("", False)
        self.setWindowTitle("Tessera")
        self.setMinimumSize(LEAST)
        self._build(pool, status)
        self._build_actions(status, themes)
        self._connect(status, themes)
        self.resize(FRESH)

    def _build(self, pool: PoolModel, status: AppStatus) -> None:
        self._root = QWidget(self)
        self._root.setProperty("surface", "chrome")
        self.setCentralWidget(self._root)
        column = QVBoxLayout(self._root)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        self.splitter = QSplitter(Qt.Orientation.Horizontal, self._root)
        self.splitter.setChildrenCollapsible(False)
        self.splitter.setHandleWidth(1)
        self.chat_list = SessionListView(self._sessions, self._intents, self.splitter)
        self.chat_area = ChatArea(self._sessions, status, self._intents, self.splitter)
        self.panel = MemoryPanel(pool, self._sessions, self._intents, status, self.splitter)
        for pane in (self.chat_list, self.chat_area, self.panel):
            self.splitter.addWidget(pane)
        self.splitter.setStretchFactor(1, 1)
        self.splitter.splitterMoved.connect(self._on_dragged)
        column.addWidget(self.splitter, 1)
        self.strip = PoolStrip(pool, self._root)
        column.addWidget(self.strip)
        self.status_line = StatusLine(status, pool, self._intents, self._root)
        column.addWidget(self.status_line)
        self._scrim = Scrim(self._root)
        self._scrim.hide()
        self._edge = QFrame(self._root)  # between the chat and a pane that lies over it
        self._edge.setProperty("kind", "hairline")
        self._edge.hide()

    def _build_actions(self, status: AppStatus, themes: ThemeManager) -> None:
        intents = self._intents
        self.actions_of = WindowActions(self, self._sessions, status, intents, themes)
        add, acts = self.actions_of.add, self.actions_of
        add("New chat", ("Ctrl+T", "Ctrl+N"), intents.new_chat.emit)
        add("Close tab", ("Ctrl+W",), acts.close_current)
        add("Reopen closed tab", ("Ctrl+Shift+T",), intents.reopen_tab.emit)
        add("Next tab", ("Ctrl+Tab", "Ctrl+PgDown"), acts.next_tab)
        add("Previous tab", ("Ctrl+Shift+Tab", "Ctrl+PgUp"), acts.previous_tab)
        add("Write a message", ("Ctrl+L",), self.focus_composer)
        add("Search chats", ("Ctrl+K",), self.focus_search)
        add("Rename chat", ("F2",), self.rename_current)
        add("Regenerate", ("Ctrl+R",), self._regenerate)
        add("Export chat", ("Ctrl+E",), acts.pop_up_export)
        add("Import a chat", ("Ctrl+Shift+O",), acts.ask_import)
        add("Open a model", ("Ctrl+O",), self._pop_up_model)
        add("Memory panel", ("Ctrl+J",), self.toggle_panel)
        add("Chat list", ("Ctrl+B",), self.toggle_list)
        add("Quit", ("Ctrl+Q",), intents.quit.emit)
        self.actions_of.listed += [
            ("Esc", "Stop the answer"),
            ("Esc in the panel", "Show all chats again"),
            ("Arrows, PgUp, PgDn, Home, End", "In the grid, go to a block"),
            ("+, -", "In the grid, larger or smaller tiles"),
        ]

    def _connect(self, status: AppStatus, themes: ThemeManager) -> None:
        themes.changed.connect(self._on_theme)
        self.chat_list.toggle_wanted.connect(self.toggle_list)
        self.chat_list.search_wanted.connect(self.focus_search)
        self.chat_list.settings_wanted.connect(self.actions_of.pop_up_settings)
        self.chat_area.list_wanted.connect(self.toggle_list)
        self.chat_area.panel_wanted.connect(self.toggle_panel)
        self.chat_area.open_model_wanted.connect(self._pop_up_model)
        self.panel.close_requested.connect(self.toggle_panel)
        self.strip.clicked.connect(self.toggle_panel)
        self.status_line.panel_wanted.connect(self.toggle_panel)
        self.status_line.model_wanted.connect(self._on_model)
        self._scrim.pressed.connect(self.close_over)
        self._sessions.current_changed.connect(self._on_current)

    # --- what gives way ----------------------------------------------------------------------

    def _wanted_mode(self) -> tuple[str, bool]:
        """How the list shows (wide, rail, hidden) and whether the panel stands beside the chat."""
        width = self.width()
        panel = width >= PANEL_FROM and self._panel_choice is not False
        if width < RAIL_FROM:
            return "hidden", panel
        wide = width >= LIST_FROM if self._list_choice is None else self._list_choice
        left = width - self._list_width - (self._fresh_panel_width() if panel else 0)
        return ("wide" if wide and left >= LEAST_CHAT else "rail"), panel

    def _fresh_panel_width(self) -> int:
        width = self.width()
        if self._panel_width and width - self._panel_width >= 2 * LEAST_CHAT:
            return self._panel_width
        return 544 if width >= 1920 else 416 if width >= LIST_FROM else SLIDE_PANEL

    def _fit(self) -> None:
        """Give every pane the place that the width of the window allows."""
        mode = self._wanted_mode()
        if mode != self._mode:
            self.close_over()
        self._mode = mode
        kind, has_panel = mode
        if self._over is not self.chat_list:
            self.chat_list.setVisible(kind != "hidden")
            self.chat_list.set_rail(kind == "rail")
        if self._over is not self.panel:
            self.panel.setVisible(has_panel)
        self.strip.setVisible(self.width() < PANEL_FROM)
        self.chat_area.list_button.setVisible(kind == "hidden")
        self.chat_area.panel_button.setVisible(self.width() >= PANEL_FROM and not has_panel)
        rail = int(theme().size("rail"))
        look = theme()
        least, most = (rail, rail) if kind == "rail" else (
            int(look.size("sidebar_min")), int(look.size("sidebar_max")),
        )  # fmt: skip
        if self._over is not self.chat_list:
            self.chat_list.setMinimumWidth(least)
            self.chat_list.setMaximumWidth(most)
        left = {"wide": self._list_width, "rail": rail, "hidden": 0}[kind]
        right = self._fresh_panel_width() if has_panel else 0
        if self._over is None:
            self.splitter.setSizes([left, max(LEAST_CHAT, self.width() - left - right), right])
        self._place_over()
        self.chat_area.arrange()

    @Slot(int, int)
    def _on_dragged(self, _position: int, _index: int) -> None:
        sizes = self.splitter.sizes()
        if self._mode[0] == "wide":
            self._list_width = sizes[0]
        if self._mode[1]:
            self._panel_width = sizes[-1]
        self.chat_area.arrange()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    # --- panes over the chat -----------------------------------------------------------------

    def _slide(self, pane: QWidget) -> None:
        """Lay a pane over the chat; a press beside it or Esc takes it away."""
        self.close_over()
        self._over = pane
        pane.setParent(self._root)
        if pane is self.chat_list:
            self.chat_list.set_rail(False)
            pane.setMinimumWidth(0)
            pane.setMaximumWidth(int(theme().size("sidebar")))
        self._scrim.show()
        self._scrim.raise_()
        pane.show()
        pane.raise_()
        self._place_over()
        pane.setFocus()

    def _place_over(self) -> None:
        if self._over is None:
            return
        height = self.splitter.height()
        self._scrim.setGeometry(0, 0, self._root.width(), height)
        if self._over is self.chat_list:
            width = int(theme().size("sidebar"))
            self._over.setGeometry(0, 0, width, height)
            self._edge.setGeometry(width, 0, 1, height)
        else:
            width = min(SLIDE_PANEL, self.width())
            self._over.setGeometry(self.width() - width, 0, width, height)
            self._edge.setGeometry(self.width() - width - 1, 0, 1, height)
        self._edge.show()
        self._edge.raise_()

    @Slot()
    def close_over(self) -> None:
        """Put the pane that lies over the chat back into its place."""
        pane, self._over = self._over, None
        if pane is None:
            return
        self._scrim.hide()
        self._edge.hide()
        pane.hide()
        self.splitter.insertWidget(0 if pane is self.chat_list else 2, pane)
        self._fit()

    # --- what the user does ------------------------------------------------------------------

    @Slot()
    def toggle_list(self) -> None:
        if self._over is self.chat_list:
            self.close_over()
            return
        kind = self._mode[0]
        self._list_choice = kind != "wide"
        self._fit()
        if self._list_choice and self._mode[0] != "wide":
            self._list_choice = None  # it does not fit: for this once it opens over the chat
            self._slide(self.chat_list)

    @Slot()
    def toggle_panel(self) -> None:
        if self._over is self.panel:
            self.close_over()
        elif self.width() < PANEL_FROM:
            self._slide(self.panel)
        else:
            self._panel_choice = not self._mode[1]
            self._fit()

    @Slot()
    def focus_composer(self) -> None:
        page = self.chat_area.current_page
        if page is not None:
            page.composer.edit.setFocus()

    @Slot()
    def focus_search(self) -> None:
        if self.chat_list.is_rail or not self.chat_list.isVisible():
            self.toggle_list()
        self.chat_list.focus_search()

    @Slot()
    def rename_current(self) -> None:
        if not self._sessions.current_id:
            return
        if self.chat_list.is_rail or not self.chat_list.isVisible():
            self.toggle_list()
        self.chat_list.list.edit_title(self._sessions.current_id)

    @Slot()
    def _regenerate(self) -> None:
        session = self._sessions.current
        if session is not None and session.record.turns and not session.is_busy:
            self._intents.regenerate.emit(session.session_id)

    @Slot()
    def _pop_up_model(self) -> None:
        middle = QPoint(self.width() // 2 - 120, self.height() // 3)
        self.actions_of.pop_up_model(self.mapToGlobal(middle))

    @Slot()
    def _on_model(self) -> None:
        self.actions_of.pop_up_model(self.status_line.mapToGlobal(QPoint(8, 0)), above=True)

    @Slot(str)
    def _on_current(self, session_id: str) -> None:
        if self._titled is not None:
            self._titled.changed.disconnect(self._show_title)
        self._titled = self._sessions.get(session_id)
        if self._titled is not None:
            self._titled.changed.connect(self._show_title)
        self._show_title()
        if self._over is self.chat_list:
            self.close_over()

    @Slot()
    def _show_title(self) -> None:
        session = self._titled
        self.setWindowTitle(f"{session.title} – Tessera" if session else "Tessera")  # noqa: RUF001

    @Slot()
    def _on_theme(self) -> None:
        refresh_icons(self)
        self.update()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() != Qt.Key.Key_Escape:
            super().keyPressEvent(event)
        elif self._over is not None:
            self.close_over()
            self.focus_composer()
        else:
            self.actions_of.stop()

    # --- closing and coming back -------------------------------------------------------------

    def allow_close(self) -> None:
        """Let the next close through."""
        self._may_close = True

    def closeEvent(self, event: QCloseEvent) -> None:
        if self._may_close:
            event.accept()
        else:
            event.ignore()
            self.close_requested.emit()

    def shot_panel(self) -> QPixmap:
        """A picture of the memory panel."""
        return self.panel.grab()

    def save_state(self) -> bytes:
        """Geometry and what the user set, for `restore_state`."""
        state = {
            "version": STATE_VERSION,
            "geometry": base64.b64encode(bytes(self.saveGeometry().data())).decode(),
            "list": self._list_choice,
            "panel": self._panel_choice,
            "list_width": self._list_width,
            "panel_width": self._panel_width,
        }
        return json.dumps(state).encode()

    def restore_state(self, saved: bytes) -> None:
        """Take what `save_state` gave; anything else is ignored."""
        try:
            state = json.loads(saved)
            if state["version"] != STATE_VERSION:
                return
            geometry = base64.b64decode(state["geometry"])
            list_choice, panel_choice = state["list"], state["panel"]
            list_width, panel_width = int(state["list_width"]), int(state["panel_width"])
        except (ValueError, KeyError, TypeError, binascii.Error):
            return
        self.restoreGeometry(geometry)
        self._list_choice = list_choice if isinstance(list_choice, bool) else None
        self._panel_choice = panel_choice if isinstance(panel_choice, bool) else None
        look = theme()
        self._list_width = int(
            min(look.size("sidebar_max"), max(look.size("sidebar_min"), list_width))
        )
        self._panel_width = max(0, panel_width)
        self._fit()
