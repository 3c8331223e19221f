"""Keys and menus of the window: what can be done from anywhere, and the list of shortcuts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, QPoint, Qt, Slot
from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QDialog, QFileDialog, QGridLayout, QLabel, QMenu, QWidget

from app.export.files import safe_name
from app.render.icons import icon
from app.render.theme import ThemeManager, theme
from app.state.intents import Intents
from app.state.session import Sessions
from app.state.status import AppStatus

FORMATS = (
    ("md", "Markdown"),
    ("json", "JSON, can be imported again"),
    ("html", "HTML, one page"),
    ("pdf", "PDF"),
)


class WindowActions(QObject):
    """Owns the shortcuts; menus are shown with popup() and dialogs with open(), never exec()."""

    def __init__(
        self,
        window: QWidget,
        sessions: Sessions,
        status: AppStatus,
        intents: Intents,
        themes: ThemeManager,
    ) -> None:
        super().__init__(window)
        self._status = status
        self._window = window
        self._sessions = sessions
        self._intents = intents
        self._themes = themes
        self.listed: list[tuple[str, str]] = []  # keys and what they do, for the list on screen
        self._last_folder = str(Path.home())
        self._dialog: QDialog | None = None

    def add(self, words: str, keys: tuple[str, ...], act: Callable[[], object]) -> QAction:
        """A shortcut that works everywhere in the window."""
        action = QAction(words, self._window)
        action.setShortcuts([QKeySequence(key) for key in keys])
        action.setShortcutContext(Qt.ShortcutContext.WindowShortcut)
        action.triggered.connect(act)
        self._window.addAction(action)
        native = QKeySequence.SequenceFormat.NativeText
        shown = ", ".join(QKeySequence(key).toString(native) for key in keys)
        self.listed.append((shown, words))
        return action

    # --- tabs ------------------------------------------------------------------------------

    @Slot()
    def close_current(self) -> None:
        if self._sessions.current_id:
            self._intents.close_tab.emit(self._sessions.current_id)

    @Slot()
    def next_tab(self) -> None:
        self._step(1)

    @Slot()
    def previous_tab(self) -> None:
        self._step(-1)

    def _step(self, by: int) -> None:
        tabs = self._sessions.tabs
        if not tabs:
            return
        here = tabs.index(self._sessions.current_id) if self._sessions.current_id in tabs else 0
        self._intents.open_chat.emit(tabs[(here + by) % len(tabs)])

    @Slot()
    def stop(self) -> None:
        session = self._sessions.current
        if session is not None and session.is_busy:
            self._intents.stop.emit(session.session_id)

    # --- export and import -------------------------------------------------------------------

    def export_menu(self, parent: QWidget | None = None) -> QMenu:
        """The four formats. It lives as long as `parent`, which is the window if not said."""
        menu = QMenu("Export chat", parent or self._window)
        menu.setIcon(icon("download"))
        for format_name, words in FORMATS:
            action = menu.addAction(words)
            action.setData(format_name)
            action.triggered.connect(self._on_export)
        menu.setEnabled(self._sessions.current is not None)
        return menu

    @Slot()
    def pop_up_export(self) -> None:
        if self._sessions.current is None:
            return
        menu = self.export_menu()
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.setTitle("Export chat")
        middle = QPoint(self._window.width() // 2 - 120, self._window.height() // 3)
        menu.popup(self._window.mapToGlobal(middle))
        menu.setActiveAction(menu.actions()[0])

    @Slot()
    def _on_export(self) -> None:
        action = self.sender()
        session = self._sessions.current
        if not isinstance(action, QAction) or session is None:
            return
        format_name = str(action.data())
        name = f"{safe_name(session.title)}.{format_name}"
        dialog = QFileDialog(self._window, "Export chat", str(Path(self._last_folder) / name))
        dialog.setAcceptMode(QFileDialog.AcceptMode.AcceptSave)
        dialog.setDefaultSuffix(format_name)
        dialog.setNameFilter(f"{dict(FORMATS)[format_name]} (*.{format_name})")
        dialog.setProperty("session_id", session.session_id)
        dialog.setProperty("format", format_name)
        dialog.selectFile(name)
        dialog.fileSelected.connect(self._on_export_file)
        self._open(dialog)

    @Slot(str)
    def _on_export_file(self, path: str) -> None:
        dialog = self.sender()
        if isinstance(dialog, QFileDialog):
            self._last_folder = str(Path(path).parent)
            wanted = str(dialog.property("session_id")), str(dialog.property("format"))
            self._intents.export.emit(*wanted, path)

    @Slot()
    def ask_import(self) -> None:
        dialog = QFileDialog(self._window, "Import a chat", self._last_folder, "JSON (*.json)")
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.fileSelected.connect(self._intents.import_chat)
        self._open(dialog)

    # --- models ------------------------------------------------------------------------------

    @Slot()
    def ask_model_file(self) -> None:
        dialog = QFileDialog(self._window, "Open a model", self._last_folder, "GGUF (*.gguf)")
        dialog.setFileMode(QFileDialog.FileMode.ExistingFile)
        dialog.fileSelected.connect(self._intents.open_model)
        self._open(dialog)

    @Slot()
    def ask_model_folder(self) -> None:
        dialog = QFileDialog(self._window, "Open a folder with safetensors", self._last_folder)
        dialog.setFileMode(QFileDialog.FileMode.Directory)
        dialog.setOption(QFileDialog.Option.ShowDirsOnly)
        dialog.fileSelected.connect(self._intents.open_model)
        self._open(dialog)

    def model_menu(self, parent: QWidget | None = None) -> QMenu:
        menu = QMenu("Open a model", parent or self._window)
        menu.setIcon(icon("box"))
        menu.addAction("GGUF file…", self.ask_model_file)
        menu.addAction("Folder with safetensors…", self.ask_model_folder)
        if name := self._status.starter_name:
            size = f"{self._status.starter_bytes / 1e6:.0f} MB"
            action = menu.addAction(f"{name} (starter, {size})", self._intents.get_starter.emit)
            action.setEnabled(self._status.phase not in ("fetching", "loading"))
        return menu

    def pop_up_model(self, at: QPoint, above: bool = False) -> None:
        """Show the ways to a model, from `at` down; `above`: so that they end there."""
        menu = self.model_menu()
        if above:
            at = QPoint(at.x(), at.y() - menu.sizeHint().height())
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.popup(at)

    def _open(self, dialog: QDialog) -> None:
        """One dialog at a time; it goes away by itself when it is closed."""
        old, self._dialog = self._dialog, None
        if old is not None:
            # It goes a moment later, and must not take the place of the new one then.
            old.destroyed.disconnect(self._on_dialog_gone)
            old.close()
        if isinstance(dialog, QFileDialog):
            dialog.resize(880, 560)  # where the desktop has no dialog of its own
        dialog.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        dialog.destroyed.connect(self._on_dialog_gone)
        self._dialog = dialog
        dialog.open()

    @Slot()
    def _on_dialog_gone(self) -> None:
        self._dialog = None

    # --- settings ----------------------------------------------------------------------------

    def settings_menu(self) -> QMenu:
        """Theme, model, import and export, the list of keys."""
        menu = QMenu(self._window)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.addMenu(self.model_menu(menu))
        menu.addSeparator()
        menu.addMenu(self.export_menu(menu))
        menu.addAction("Import a chat…\tCtrl+Shift+O", self.ask_import)
        menu.addSeparator()
        menu.addMenu(self._theme_menu(menu))
        menu.addAction("Keyboard shortcuts", self.show_keys)
        menu.addSeparator()
        menu.addAction("Quit\tCtrl+Q", self._intents.quit.emit)
        return menu

    def _theme_menu(self, parent: QWidget) -> QMenu:
        menu = QMenu("Theme", parent)
        group = QActionGroup(menu)
        for choice, words in (("system", "As the system"), ("light", "Light"), ("dark", "Dark")):
            action = menu.addAction(words)
            action.setData(choice)
            action.setCheckable(True)
            action.setChecked(self._themes.choice == choice)
            action.triggered.connect(self._on_theme)
            group.addAction(action)
        return menu

    @Slot()
    def _on_theme(self) -> None:
        action = self.sender()
        if isinstance(action, QAction):
            self._intents.set_theme.emit(str(action.data()))

    def pop_up_settings(self, at: QPoint) -> None:
        """Show the settings so that they end at `at`."""
        menu = self.settings_menu()
        menu.popup(QPoint(at.x(), at.y() - menu.sizeHint().height()))

    @Slot()
    def show_keys(self) -> None:
        dialog = QDialog(self._window)
        dialog.setWindowTitle("Keyboard shortcuts")
        grid = QGridLayout(dialog)
        grid.setContentsMargins(24, 20, 24, 20)
        grid.setHorizontalSpacing(32)
        grid.setVerticalSpacing(4)
        more = [("Enter", "Send"), ("Shift+Enter", "New line")]
        for row, (keys, words) in enumerate(more + self.listed):
            name = QLabel(words, dialog)
            key = QLabel(keys, dialog)
            key.setProperty("tone", "secondary")
            key.setFont(theme().font("base", "regular"))
            grid.addWidget(name, row, 0)
            grid.addWidget(key, row, 1)
        self._open(dialog)
