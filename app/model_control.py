"""ModelControl: which model is loaded, being loaded or fetched, and the engine that runs it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from PySide6.QtCore import QObject, Signal, Slot

from app.bridge import EngineBridge
from app.replies import Replies
from app.state.intents import Intents
from app.state.status import AppStatus
from app.tasks import Tasks
from engine.errors import DownloadError, EngineStoppedError
from engine.messages import CancelLoad, LoadModel, ModelFailed, ModelInfo, ModelLoading
from engine.places import starter, starter_path

Progress = Callable[[int, int], None]
Fetch = Callable[[Path, Progress, Callable[[], bool]], Path]


class ModelControl(QObject):
    """Loads models, fetches the starter, restarts an engine that stopped.

    Signals:
        opened(path): a model is loaded; the one to load at the next start.
    """

    opened = Signal(str)
    _fetched_bytes = Signal(object, object)  # from the fetching thread; 64 bits

    def __init__(
        self,
        intents: Intents,
        bridge: EngineBridge,
        status: AppStatus,
        replies: Replies,
        tasks: Tasks,
        data_dir: Path,
        fetch: Fetch,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._status = status
        self._replies = replies
        self._tasks = tasks
        self._data_dir = data_dir
        self._fetch = fetch
        self._wanted = ""
        self._loaded: ModelInfo | None = None  # what the engine holds
        self._fetch_cancelled: threading.Event | None = None
        self._fetched_bytes.connect(self._on_fetched_bytes)
        intents.open_model.connect(self.load)
        intents.cancel_load.connect(self._cancel_load)
        intents.get_starter.connect(self._get_starter)
        intents.cancel_starter.connect(self.cancel_fetch)
        intents.restart_engine.connect(self._restart)
        bridge.loading.connect(self._on_loading)
        bridge.loaded.connect(self._on_loaded)
        bridge.load_failed.connect(self._on_load_failed)
        bridge.stopped.connect(self._on_stopped)
        description = starter()
        status.update(starter_name=description.name, starter_bytes=description.num_bytes)

    # --- loading --------------------------------------------------------------------------------

    @Slot(str)
    def load(self, path: str) -> None:
        """Load a model in place of the present one, whose replies end then, with their text. Until
        the file has been checked, and when it is not fit, the present one goes on."""
        self.cancel_fetch()
        self._wanted = str(Path(path).expanduser())
        if not self._bridge.is_running:
            self._bridge.start()
        name = Path(self._wanted).name
        self._status.update(phase="loading", fraction=0.0, note=name, message="")
        with suppress(EngineStoppedError):  # `_on_stopped` says why
            self._bridge.send(LoadModel(self._wanted))

    @Slot()
    def _cancel_load(self) -> None:
        """Ask the engine to give up; `_on_load_failed` says what is left, or the model is there
        all the same because it was in memory already."""
        if self._status.phase == "loading":
            self._status.update(note="Cancelling")
            with suppress(EngineStoppedError):  # `_on_stopped` says why
                self._bridge.send(CancelLoad())

    @Slot()
    def _restart(self) -> None:
        if self._bridge.is_running:
            return
        if self._wanted:
            self.load(self._wanted)
            return
        self._bridge.start()
        self._status.update(phase="none", message="")

    @Slot(object)
    def _on_loading(self, event: ModelLoading) -> None:
        self._loaded = None
        if event.path == self._wanted:
            self._status.update(
                phase="loading", fraction=event.fraction, note=event.note, model=None
            )

    @Slot(object)
    def _on_loaded(self, info: ModelInfo) -> None:
        self._loaded = info
        if info.file == self._wanted:  # else another one was asked for meanwhile and comes next
            self._show_loaded(info)

    def _show_loaded(self, info: ModelInfo) -> None:
        self._replies.new_pool()
        self._replies.tell_pins()
        self._status.update(phase="ready", fraction=1.0, note="", message="", model=info)
        self.opened.emit(self._wanted)
        self._replies.release_held()

    @Slot(object)
    def _on_load_failed(self, event: ModelFailed) -> None:
        if event.path != self._wanted:
            return
        if event.is_kept and self._loaded is not None:
            self._keep(self._loaded, event)
            return
        if event.is_cancelled:
            self._wanted = ""
            self._status.update(phase="none", fraction=0.0, note="", message="", model=None)
            self._status.toast.emit(event.message, "")
            self._replies.fail_all(f"{event.message} Open a model, then press Regenerate.")
            return
        self._status.update(phase="failed", fraction=0.0, note="", message=event.message)
        self._replies.fail_all(f"{event.message} Open another model, then press Regenerate.")

    def _keep(self, info: ModelInfo, event: ModelFailed) -> None:
        """Go on with the model that is still there."""
        self._wanted = info.file
        if self._status.model is info:
            self._status.update(phase="ready", fraction=1.0, note="")
            self._replies.release_held()
        else:
            self._show_loaded(info)
        words = f"{event.message} {info.name} goes on."
        if event.is_cancelled:
            self._status.toast.emit(words, "")
        else:
            self._status.error.emit(words)

    @Slot(object)
    def _on_stopped(self, reason: str) -> None:
        if not reason:
            return  # asked for: the application ends
        self._loaded = None
        self._status.update(phase="stopped", model=None, message=reason, fraction=0.0, note="")
        self._replies.new_pool()
        self._replies.fail_all(
            "The engine stopped while this reply was being written; restart it, then press "
            "Regenerate."
        )

    # --- the starter model ----------------------------------------------------------------------

    @Slot()
    def _get_starter(self) -> None:
        if self._fetch_cancelled is None:
            self._fetch_cancelled = threading.Event()
            self._tasks.start(self._fetch_and_load(self._fetch_cancelled))

    @Slot()
    def cancel_fetch(self) -> None:
        """Stop fetching; what came so far is not used."""
        if self._fetch_cancelled is not None:
            self._fetch_cancelled.set()

    async def _fetch_and_load(self, cancelled: threading.Event) -> None:
        path = starter_path(self._data_dir)
        if not self._is_whole(path):
            note = f"Fetching {self._status.starter_name}"
            self._status.update(phase="fetching", fraction=0.0, note=note, message="")
            fetched = await self._fetch_in_worker(cancelled)
            if fetched is None:
                return
            path = fetched
        self._fetch_cancelled = None
        self.load(str(path))

    def _is_whole(self, path: Path) -> bool:
        """By its size; `fetch` would compare its digest too, which takes a moment."""
        try:
            return path.stat().st_size == self._status.starter_bytes
        except OSError:
            return False

    async def _fetch_in_worker(self, cancelled: threading.Event) -> Path | None:
        loop = asyncio.get_running_loop()
        worker = ThreadPoolExecutor(1, thread_name_prefix="io-fetch")
        try:
            path = await loop.run_in_executor(
                worker, self._fetch, self._data_dir, self._fetched_bytes.emit, cancelled.is_set
            )
        except DownloadError as error:
            self._after_fetch("" if cancelled.is_set() else str(error))
            return None
        finally:
            worker.shutdown(wait=False)
            self._fetch_cancelled = None
        if cancelled.is_set():  # another model was chosen while the last bytes came
            self._after_fetch("")
            return None
        return path

    def _after_fetch(self, message: str) -> None:
        """Back to where things stood before the fetch."""
        if self._status.phase != "fetching":
            return
        if self._status.model is not None:
            self._status.update(phase="ready", fraction=1.0, note="", message="")
            if message:
                self._status.error.emit(message)
            return
        phase = "failed" if message else "none"
        self._status.update(phase=phase, fraction=0.0, note="", message=message)
        self._replies.fail_all("No model is loaded; open one, then press Regenerate.")

    @Slot(object, object)
    def _on_fetched_bytes(self, done: int, total: int) -> None:
        if self._status.phase == "fetching":
            self._status.update(fraction=done / total if total else 0.0)
