"""Composition root: builds every object of the window, connects them, and takes them down again."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import qasync
from PySide6.QtCore import QObject, Qt, QThreadPool, Slot
from PySide6.QtWidgets import QApplication

from app.bridge import Client, EngineBridge
from app.chats import Chats
from app.collector import Collector
from app.errors import HistoryError
from app.excepthook import ErrorReporter
from app.history import History
from app.instance import SingleInstance
from app.journal import Journal
from app.library.starter import fetch
from app.meter import LoadMeter
from app.model_control import ModelControl
from app.notices import Notices
from app.options import VERSION, Options, model_to_load
from app.render.theme import ThemeManager
from app.replies import Replies
from app.settings import SettingsStore, ThemeChoice
from app.state.intents import Intents
from app.state.pool import PoolModel
from app.state.session import Sessions
from app.state.status import AppStatus
from app.tasks import Tasks
from app.transfer import Transfer
from app.views.main_window import MainWindow
from app.views.style import install_style
from engine.client import EngineClient
from engine.config import EngineConfig
from engine.errors import EngineStoppedError
from engine.messages import Shutdown

log = logging.getLogger("tessera")
ENGINE_END_S = 2.0  # for the engine to finish its step and stop
CLOSE_S = 1.0  # for the last writes, when another program holds the file with the chats
EXIT_S = 0.3  # for threads that were told to end
Script = Callable[["App"], Awaitable[int]]


class App(QObject):
    """The running application: everything there is one of.

    `profile` is the folder of chats and settings; only a demo has another one than the data
    folder, where models lie.
    """

    def __init__(self, options: Options, profile: Path, qt: QApplication) -> None:
        super().__init__()
        self.options = options
        self.qt = qt
        self.closed = asyncio.Event()
        self.exit_code = 0
        self._is_closing = False
        self._settle_engine: asyncio.Event | None = None
        self.reporter = ErrorReporter(profile, self)
        self.reporter.install()
        self._build_state(profile)
        self._build_control(profile)
        self.focus_ring = install_style(qt)  # before the theme, whose style sheet comes on top
        self.themes = ThemeManager(self)
        self.themes.set_choice(options.theme or self.settings.theme)
        self.window = MainWindow(self.sessions, self.pool, self.status, self.intents, self.themes)
        if self.settings.window_state:
            self.window.restore_state(self.settings.window_state)
        self._connect()

    def _build_state(self, profile: Path) -> None:
        self.store = SettingsStore(profile / "settings.ini")
        self.settings = self.store.read()
        self.intents = Intents(self)
        self.sessions = Sessions(self)
        self.status = AppStatus(self)
        self.pool = PoolModel(self)
        self.tasks = Tasks(self.reporter.report)
        self.history = History(profile / "history.db")
        self.journal = Journal(self.history, self.status, self.tasks)
        self.collector = Collector(self)

    def _build_control(self, profile: Path) -> None:
        self.bridge = EngineBridge(self._make_client, self)
        self.replies = Replies(self.bridge, self.journal, self.sessions, self.status, self)
        self.chats = Chats(
            self.intents, self.sessions, self.status, self.journal, self.replies, self.tasks, self
        )
        self.chats.default_sampling = self.settings.sampling
        self.models = ModelControl(
            self.intents, self.bridge, self.status, self.replies, self.tasks,
            self.options.data_dir, fetch, self,
        )  # fmt: skip
        self.transfer = Transfer(
            self.intents, self.sessions, self.chats, self.status, self.tasks, self
        )
        self.meter = LoadMeter(self.bridge, self.status, self)
        self.notices = Notices(self.bridge, self.status, self)

    def _make_client(self) -> Client:
        return EngineClient(self._config())

    def _config(self) -> EngineConfig:
        config = self.options.config
        if self.options.has_memory_fraction or self.settings.memory_fraction is None:
            return config
        return replace(config, memory_fraction=self.settings.memory_fraction)

    def _connect(self) -> None:
        self.reporter.happened.connect(self.status.error)
        self.bridge.pool.connect(self.pool.set_snapshot)
        self.bridge.loading.connect(self.collector.on_loading)
        self.bridge.loaded.connect(self.collector.on_loaded)
        self.bridge.load_failed.connect(self.collector.on_load_failed)
        self.bridge.unloaded.connect(self.collector.on_unloaded)
        self.bridge.loading.connect(self._clear_pool)
        self.bridge.stopped.connect(self._on_engine_stopped)
        self.models.opened.connect(self._remember_model)
        self.intents.set_theme.connect(self._set_theme)
        self.intents.quit.connect(self.quit)
        self.window.close_requested.connect(self.quit)

    # --- start ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """The window first; then the chats; then the engine, whose imports take a second."""
        self.collector.start()
        self.window.show()
        await asyncio.sleep(0)
        self.chats.show(await self.history.open())
        if self.sessions.all and not self.sessions.tabs:
            self.chats.new_chat()  # who has no chat at all is welcomed instead
        self.bridge.start()
        path = model_to_load(self.options.model, self.settings.last_model, self.options.data_dir)
        if path:
            self.models.load(path)

    @Slot()
    def show_window(self) -> None:
        """To the front, from wherever it is."""
        self.window.setWindowState(self.window.windowState() & ~Qt.WindowState.WindowMinimized)
        self.window.show()
        self.window.raise_()
        self.window.activateWindow()

    @Slot(object)
    def _clear_pool(self, _: object) -> None:
        if self.pool.snapshot is not None:
            self.pool.set_snapshot(None)

    @Slot(str)
    def _remember_model(self, path: str) -> None:
        self._change_settings(last_model=path)

    @Slot(str)
    def _set_theme(self, choice: ThemeChoice) -> None:
        self.themes.set_choice(choice)
        self._change_settings(theme=choice)

    def _change_settings(self, **changes: object) -> None:
        self.settings = replace(self.settings, **changes)  # type: ignore[arg-type]
        self.store.write(self.settings)

    # --- end ------------------------------------------------------------------------------------

    @Slot()
    def quit(self) -> None:
        """Hide at once, then end in order. Asked twice, it does so once."""
        if not self._is_closing:
            self._is_closing = True
            self._change_settings(window_state=bytes(self.window.save_state()))
            self.window.hide()
            self.tasks.start(self._end())

    async def _end(self) -> None:
        try:
            self.models.cancel_fetch()
            await self._end_engine()
            self.replies.interrupt_all()
            self.chats.save_tabs()
            await self.tasks.settle(timeout_s=0.5)
            self.transfer.close()
            await asyncio.wait_for(self.history.close(), CLOSE_S)
        except HistoryError as error:
            log.error("at the end: %s", error)
        except TimeoutError:
            log.error("at the end: the file with the chats is held by another program")
        finally:
            self.window.allow_close()
            self.window.close()
            self.collector.stop()
            self.closed.set()

    async def _end_engine(self) -> None:
        """Stop the engine and wait for its last word, while the event loop keeps turning."""
        if not self.bridge.is_running:
            return
        self._settle_engine = asyncio.Event()
        try:
            self.bridge.send(Shutdown())
            await asyncio.wait_for(self._settle_engine.wait(), ENGINE_END_S)
        except EngineStoppedError:
            return
        except TimeoutError:
            log.warning("the engine did not end within %.1f s", ENGINE_END_S)

    @Slot(object)
    def _on_engine_stopped(self, reason: str) -> None:
        if self._settle_engine is not None:
            self._settle_engine.set()
        elif reason:
            self.pool.set_snapshot(None)


def run(options: Options, script: Script | None = None, profile: Path | None = None) -> int:
    """Open the window and stay until it is closed. Returns the exit status.

    A script (the demo) runs beside the window once it is up; its result is the exit status.
    """
    sys.setswitchinterval(0.001)  # the engine's Python must not hold the window for 5 ms
    if not _has_display():
        print(
            "There is no display to open a window on (neither DISPLAY nor WAYLAND_DISPLAY is set); "
            "start Tessera from a desktop, or use `python -m engine` without a window.",
            file=sys.stderr,
        )
        return 2
    qt = _application()
    folder = profile or options.data_dir
    instance = SingleInstance(folder)
    try:
        is_first = instance.acquire()
    except OSError as error:
        print(
            f"The data folder {folder} cannot be used ({error.strerror or error}); choose another "
            "one with --data-dir.",
            file=sys.stderr,
        )
        return 2
    if not is_first:
        return _raise_first(instance, folder, options)
    try:
        return _run(options, script, folder, qt, instance)
    finally:
        instance.release()


def _application() -> QApplication:
    qt = QApplication.instance()
    if not isinstance(qt, QApplication):
        qt = QApplication(["tessera"])
    qt.setApplicationName("Tessera")
    qt.setApplicationVersion(VERSION)
    qt.setDesktopFileName("tessera")
    qt.setQuitOnLastWindowClosed(False)  # `App.quit` hides the window long before the end
    return qt


def _has_display() -> bool:
    """Asked first, because Qt ends the process, with a sentence about libraries."""
    if sys.platform in ("win32", "darwin") or os.environ.get("QT_QPA_PLATFORM"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _raise_first(instance: SingleInstance, folder: Path, options: Options) -> int:
    if instance.raise_first():
        if options.model:
            print(
                f"Tessera is open already with {folder}; its window was raised, and --model was "
                "not used: open the model there.",
                file=sys.stderr,
            )
        return 0
    print(
        f"Tessera already runs with {folder} but does not answer; end that process, or choose "
        "another folder with --data-dir.",
        file=sys.stderr,
    )
    return 1


def _run(
    options: Options,
    script: Script | None,
    profile: Path,
    qt: QApplication,
    instance: SingleInstance,
) -> int:
    loop = qasync.QEventLoop(qt)
    asyncio.set_event_loop(loop)
    with loop:
        return int(loop.run_until_complete(_live(options, script, profile, qt, instance)))


async def _live(
    options: Options,
    script: Script | None,
    profile: Path,
    qt: QApplication,
    instance: SingleInstance,
) -> int:
    app = App(options, profile, qt)
    instance.raise_requested.connect(app.show_window)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: app.quit())  # runs at the collector's next tick
    app.tasks.start(app.start())
    if script is not None:
        app.tasks.start(_play(app, script))
    await app.closed.wait()
    app.reporter.uninstall()
    _leave_nothing_behind(app)
    return app.exit_code


async def _play(app: App, script: Script) -> None:
    try:
        app.exit_code = await script(app)
    except BaseException:
        app.exit_code = 1
        raise
    finally:
        app.quit()


def _leave_nothing_behind(app: App) -> None:
    """A thread that does not end (a load deep inside the system, a stuck download) must not keep
    a closed application alive: everything is on the disk, so the process may simply go."""
    deadline_s = time.monotonic() + EXIT_S
    QThreadPool.globalInstance().waitForDone(int(EXIT_S * 1000))
    is_over = app.bridge.join(max(deadline_s - time.monotonic(), 0.0))
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(max(deadline_s - time.monotonic(), 0.0))
            is_over = is_over and not thread.is_alive()
    if is_over:
        return
    for child in multiprocessing.active_children():
        child.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(app.exit_code)
