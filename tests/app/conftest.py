"""What tests of the window share: a loop of Qt and asyncio, and a chat core on a fake engine."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

import pytest
import qasync

from app.bridge import EngineBridge
from app.chats import Chats
from app.history import History
from app.history_file import Loaded
from app.journal import Journal
from app.model_control import ModelControl
from app.notices import Notices
from app.replies import Replies
from app.state.intents import Intents
from app.state.session import Session, Sessions
from app.state.status import AppStatus
from app.tasks import Tasks
from app.transfer import Transfer
from engine.errors import EngineStoppedError
from engine.messages import (
    Command,
    EngineStopped,
    Event,
    Finished,
    LoadModel,
    ModelInfo,
    ModelLoaded,
    PoolSnapshot,
    StepEvents,
    Submit,
    TextDelta,
    Usage,
)

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def run(qapp):
    """Runs one coroutine on Qt's event loop, with a time limit.

    Garbage is collected here and not on the workers, as the application's Collector does: a
    QObject that dies on a worker is an error of Qt.
    """
    gc.collect()
    gc.disable()
    loop = qasync.QEventLoop(qapp)
    asyncio.set_event_loop(loop)

    def runner(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return loop.run_until_complete(asyncio.wait_for(coroutine, 20))

    yield runner
    loop.close()
    asyncio.set_event_loop(None)
    gc.collect()
    gc.enable()


class FakeClient:
    """Keeps the commands; a test says what the engine answers with `say`."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.ended = False
        self._sink: Callable[[StepEvents], None] | None = None
        self._last_id = 0

    def start(self) -> None:
        pass

    def subscribe(self, sink: Callable[[StepEvents], None]) -> None:
        self._sink = sink

    def next_request_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def send(self, command: Command) -> None:
        if self.ended:
            raise EngineStoppedError("The engine has ended.")
        self.commands.append(command)

    def join(self, timeout_s: float) -> bool:
        return True

    def say(self, *events: Event, pool: PoolSnapshot | None = None) -> None:
        assert self._sink is not None
        if any(isinstance(event, EngineStopped) for event in events):
            self.ended = True
        self._sink(StepEvents(events, None, pool))

    def of(self, kind: type) -> list[Any]:
        return [command for command in self.commands if isinstance(command, kind)]

    @property
    def submits(self) -> list[Submit]:
        return self.of(Submit)


def fake_info(path: str = "/models/a.gguf") -> ModelInfo:
    return ModelInfo(
        name="Fake", file=path, architecture="llama", context_tokens=2048, num_parameters=1,
        device="cpu", device_name="CPU", backend="reference", path="fast", precision="fast",
        storage="fp32", weights_bytes=1, num_blocks=8, block_tokens=16, block_bytes=1024,
        has_chat_template=True, version="2026.12.0",
    )  # fmt: skip


def fake_usage(new_tokens: int = 3) -> Usage:
    return Usage(7, 0, new_tokens, 12.5, 30.0, 0, 1, 1024)


class Core:
    """The window without widgets: everything between the intents and the engine's door."""

    def __init__(self, path: Path) -> None:
        self.clients: list[FakeClient] = []
        self.errors: list[BaseException] = []
        self.toasts: list[tuple[str, str]] = []
        self.sentences: list[str] = []
        self.fetch: Callable[..., Path] = lambda *_: path / "models" / "none.gguf"
        self.intents = Intents()
        self.sessions = Sessions()
        self.status = AppStatus()
        self.status.toast.connect(lambda text, label: self.toasts.append((text, label)))
        self.status.error.connect(self.sentences.append)
        self.notices_shown: list[str] = []
        self.status.notice.connect(self.notices_shown.append)
        self.tasks = Tasks(self.errors.append)
        self.history = History(path / "history.db")
        self.journal = Journal(self.history, self.status, self.tasks)
        self.bridge = EngineBridge(self._make_client)
        self.replies = Replies(self.bridge, self.journal, self.sessions, self.status)
        self.chats = Chats(
            self.intents, self.sessions, self.status, self.journal, self.replies, self.tasks
        )
        self.models = ModelControl(
            self.intents, self.bridge, self.status, self.replies, self.tasks, path,
            lambda *args: self.fetch(*args),
        )  # fmt: skip
        self.notices = Notices(self.bridge, self.status)
        self.transfer = Transfer(self.intents, self.sessions, self.chats, self.status, self.tasks)

    def _make_client(self) -> FakeClient:
        self.clients.append(FakeClient())
        return self.clients[-1]

    @property
    def client(self) -> FakeClient:
        return self.clients[-1]

    async def open(self, with_model: bool = True) -> Loaded:
        loaded = await self.history.open()
        self.chats.show(loaded)
        self.bridge.start()
        if with_model:
            await self.load()
        return loaded

    async def load(self, path: str = "/models/a.gguf") -> None:
        self.models.load(path)
        self.say_loaded(path)
        await self.until(lambda: self.status.phase == "ready")
        assert self.client.of(LoadModel)[-1].path == path

    def say_loaded(self, path: str) -> None:
        self.client.say(ModelLoaded(fake_info(path)))

    async def until(self, is_true: Callable[[], Any]) -> None:
        for _ in range(1000):
            if is_true():
                return
            await asyncio.sleep(0.005)
        raise AssertionError("it never became true")

    async def settle(self) -> None:
        """Everything that was started has ended, what was posted has arrived."""
        await asyncio.sleep(0.02)
        await self.until(lambda: self.tasks.num_running == 0)

    async def ask(self, text: str, session: Session | None = None) -> tuple[Session, Submit]:
        """Send a message and wait until the engine has been asked."""
        session = session or self.chats.new_chat()
        before = len(self.client.submits)
        self.intents.send.emit(session.session_id, text)
        await self.until(lambda: len(self.client.submits) > before)
        return session, self.client.submits[-1]

    async def answer(self, submit: Submit, text: str, reason: str = "stop") -> None:
        request_id = submit.request_id
        self.client.say(TextDelta(request_id, text, (1, 2, 3)))
        self.client.say(Finished(request_id, reason, fake_usage()))  # type: ignore[arg-type]
        await self.settle()

    async def close(self) -> None:
        await self.settle()
        self.transfer.close()
        await self.history.close()
        assert self.errors == []


@pytest.fixture
def core(run, tmp_path) -> Core:
    return Core(tmp_path)


@pytest.fixture
def make_core(run, tmp_path) -> Callable[[], Core]:
    return lambda: Core(tmp_path)
