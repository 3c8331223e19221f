"""EngineBridge: where the engine's thread meets the window. Mailbox in, typed signals out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from PySide6.QtCore import QObject, Qt, QTimer, Signal, Slot

from engine.errors import EngineStoppedError
from engine.messages import (
    Accepted,
    Command,
    EngineStopped,
    Event,
    Failed,
    Finished,
    ModelFailed,
    ModelLoaded,
    ModelLoading,
    ModelUnloaded,
    Notice,
    PoolSnapshot,
    PrefixFound,
    StateChanged,
    StepEvents,
    TextDelta,
)

FRAME_MS = 33  # a screen shows no more than 30 appends a second


class Client(Protocol):
    """What the bridge needs of `engine.client.EngineClient`."""

    def start(self) -> None: ...
    def subscribe(self, sink: Callable[[StepEvents], None]) -> None: ...
    def next_request_id(self) -> int: ...
    def send(self, command: Command) -> None: ...
    def join(self, timeout_s: float) -> bool: ...


class EngineBridge(QObject):
    """Hands commands down and events up. All signals are emitted on the UI thread.

    Text is merged per request and given out once a frame; before anything else is said about a
    request, its text so far is given out. Text and other strings that came from a model travel as
    objects: Qt takes a string that starts with U+FFFE or U+FEFF for a byte order mark.

    Signals:
        text(request_id, text, num_tokens)
        accepted(Accepted), state(StateChanged), finished(Finished), failed(Failed)
        prefix(PrefixFound), notice(message)
        loading(ModelLoading), loaded(ModelInfo), load_failed(ModelFailed), unloaded
        pool(PoolSnapshot): the newest of those that came together.
        stats(StepStats): one for every step.
        stopped(reason): the engine thread ends; "" after a Shutdown.
    """

    text = Signal(int, object, int)
    accepted = Signal(object)
    state = Signal(object)
    finished = Signal(object)
    failed = Signal(object)
    prefix = Signal(object)
    notice = Signal(object)
    loading = Signal(object)
    loaded = Signal(object)
    load_failed = Signal(object)
    unloaded = Signal()
    pool = Signal(object)
    stats = Signal(object)
    stopped = Signal(object)
    _wake = Signal()

    def __init__(self, make_client: Callable[[], Client], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._make_client = make_client
        self._client: Client | None = None
        self._inbox: deque[StepEvents] = deque()
        self._awake = False
        self._texts: dict[int, list[str]] = {}  # request id -> pieces not yet given out
        self._token_counts: dict[int, int] = {}
        self._frame = QTimer(self)
        self._frame.setInterval(FRAME_MS)
        self._frame.timeout.connect(self._on_frame)
        self._wake.connect(self._drain, Qt.ConnectionType.QueuedConnection)

    # --- down -----------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._client is not None

    def start(self) -> None:
        """Start an engine thread, the first one or one in place of a thread that has stopped."""
        assert self._client is None, "one engine at a time"
        self._client = self._make_client()
        self._client.subscribe(self.post)
        self._client.start()

    def next_request_id(self) -> int:
        if self._client is None:
            raise EngineStoppedError("The engine has stopped; restart it.")
        return self._client.next_request_id()

    def send(self, command: Command) -> None:
        """Hand a command to the engine.

        Raises:
            EngineStoppedError: there is no engine thread, or it has ended.
        """
        if self._client is None:
            raise EngineStoppedError("The engine has stopped; restart it.")
        self._client.send(command)

    def join(self, timeout_s: float) -> bool:
        """Wait for the engine thread; True when there is none any more. Blocks."""
        return self._client is None or self._client.join(timeout_s)

    # --- up -------------------------------------------------------------------------------------

    def post(self, step: StepEvents) -> None:
        """Take what one step has to say. Called on the engine's thread; returns at once."""
        self._inbox.append(step)
        if not self._awake:
            self._awake = True
            self._wake.emit()

    @Slot()
    def _drain(self) -> None:
        self._awake = False  # first: a post during the loop must wake us again
        newest_pool: PoolSnapshot | None = None
        while self._inbox:
            step = self._inbox.popleft()
            for event in step.events:
                self._handle(event)
            if step.stats is not None:
                self.stats.emit(step.stats)
            if step.pool is not None:
                newest_pool = step.pool
        if newest_pool is not None:
            self.pool.emit(newest_pool)
        if self._texts and not self._frame.isActive():
            self._on_frame()  # the first text after a silence is shown at once
            self._frame.start()

    def _handle(self, event: Event) -> None:
        match event:
            case TextDelta(request_id, text, token_ids):
                self._texts.setdefault(request_id, []).append(text)
                count = self._token_counts.get(request_id, 0)
                self._token_counts[request_id] = count + len(token_ids)
            case Accepted():
                self.accepted.emit(event)
            case StateChanged(request_id):
                self._give_out(request_id)
                self.state.emit(event)
            case Finished(request_id):
                self._give_out(request_id)
                self.finished.emit(event)
            case Failed(request_id):
                self._give_out(request_id)
                self.failed.emit(event)
            case PrefixFound():
                self.prefix.emit(event)
            case Notice(message):
                self.notice.emit(message)
            case ModelLoading():
                self.loading.emit(event)
            case ModelLoaded(info):
                self.loaded.emit(info)
            case ModelFailed():
                self.load_failed.emit(event)
            case ModelUnloaded():
                self.unloaded.emit()
            case EngineStopped(reason):
                self._on_frame()
                self._frame.stop()
                if reason:  # it ended by itself: `start` may be called again
                    self._client = None
                self.stopped.emit(reason)

    def _give_out(self, request_id: int) -> None:
        pieces = self._texts.pop(request_id, None)
        if pieces is not None:
            self.text.emit(request_id, "".join(pieces), self._token_counts.pop(request_id))

    @Slot()
    def _on_frame(self) -> None:
        if not self._texts:
            self._frame.stop()
        for request_id in list(self._texts):
            self._give_out(request_id)
