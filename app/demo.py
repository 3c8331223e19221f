"""The scripted demo: three chats in the real window, on a real model, with pictures of it.

It asks for everything through the same intents as a user's clicks. Chats and settings lie in a
temporary profile; the user's own are not touched. It never downloads.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Slot
from PySide6.QtWidgets import QWidget

from app.export.files import safe_name
from app.options import NO_STARTER, Options
from app.records import Sampling
from app.settings import SettingsStore
from engine.errors import TesseraError
from engine.places import starter_path

if TYPE_CHECKING:
    from app.main import App
    from app.state.session import Session

PROMPTS = (
    "Write a short story about a lighthouse keeper who collects clouds.",
    "Explain to a ten-year-old why the sky is blue, step by step.",
    "Give me a packing list for a weekend of hiking in the mountains, with a reason for each item.",
)
MAX_TOKENS = 160
LOAD_S = 180.0
ANSWER_S = 600.0
SHOWN_CHARS = 240  # of every reply in the first picture
PAINT_S = 0.15  # for the window to lay out and paint after a change of theme
FORMATS = ("md", "json", "html", "pdf")


class DemoError(TesseraError):
    """The demo cannot go on; the sentence says why."""


def run_demo(options: Options) -> int:
    """Play the demo. Returns 0; 2 with a sentence on stderr when there is no model to play with."""
    from app.main import run

    model = options.model or _known_model(options.data_dir)
    if not model or not Path(model).exists():
        where = f"{model} does not exist" if model else NO_STARTER.format(folder=options.data_dir)
        print(where.rstrip(".") + ".", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="tessera-demo-") as profile:
        return run(replace(options, model=model), _play, Path(profile))


def _known_model(folder: Path) -> str:
    """The model the user opened last, else the starter model when it is there."""
    settings_path = folder / "settings.ini"
    last = SettingsStore(settings_path).read().last_model if settings_path.exists() else ""
    if last and Path(last).exists():
        return last
    path = starter_path(folder)
    return str(path) if path.exists() else ""


class _Watch(QObject):
    """Counts how many chats write at the same moment."""

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self._app = app
        self.most = 0
        app.status.changed.connect(self._on_changed)

    @Slot()
    def _on_changed(self) -> None:
        self.most = max(self.most, self._app.status.num_generating)


async def _play(app: App) -> int:
    try:
        await _until(lambda: app.status.phase in ("ready", "failed", "stopped"), LOAD_S, "load")
        if app.status.phase != "ready":
            print(app.status.message, file=sys.stderr)
            return 2
        result = await _chat(app)
    except TesseraError as error:
        print(str(error), file=sys.stderr)
        return 1
    print(json.dumps(result, ensure_ascii=False), flush=True)
    return 0


async def _chat(app: App) -> dict[str, object]:
    assert app.options.shots is not None
    shots = app.options.shots
    shots.mkdir(parents=True, exist_ok=True)
    watch = _Watch(app)
    for session_id in list(app.sessions.tabs):  # the empty chat a fresh window opens with
        app.intents.close_tab.emit(session_id)
    app.chats.default_sampling = Sampling(temperature=0.0, max_tokens=MAX_TOKENS)
    app.intents.send_all.emit(list(PROMPTS))
    sessions = [app.sessions.get(session_id) for session_id in app.sessions.tabs]
    chats = [session for session in sessions if session is not None]
    await _until(
        lambda: all(_has_ended(chat) or _num_chars(chat) >= SHOWN_CHARS for chat in chats),
        ANSWER_S,
        "write",
    )
    await _shoot(app, shots, 1)
    await _until(lambda: all(_has_ended(chat) for chat in chats), ANSWER_S, "finish")
    await _until(lambda: app.pool.counts.active == 0, 5.0, "give its blocks back")
    await _shoot(app, shots, 2)
    for chat in chats:
        for name in FORMATS:
            path = shots / f"{safe_name(chat.title)}.{name}"  # a second run replaces the first
            await app.transfer.export(chat.record, name, path)
    return _result(app, chats, watch.most)


def _result(app: App, chats: list[Session], most: int) -> dict[str, object]:
    counts = app.pool.counts
    replies = []
    for chat in chats:
        reply = chat.record.turns[0].reply
        if reply is None or reply.state != "complete":
            why = reply.error if reply else "it was never asked for"
            raise DemoError(f"“{chat.title}” has no answer: {why}")
        replies.append(
            {"title": chat.title, "tokens": reply.new_tokens, "finish_reason": reply.finish_reason}
        )
    return {
        "sessions": replies,
        "max_generating_at_once": most,
        "pool": {
            "free": counts.free,
            "cached": counts.cached,
            "active": counts.active,
            "shared": counts.shared,
            "num_blocks": app.pool.num_blocks,
        },
    }


async def _shoot(app: App, folder: Path, number: int) -> None:
    """`<n>-light.png`, `<n>-dark.png` and `<n>-panel.png` as the window stands."""
    for theme in ("light", "dark"):
        app.themes.set_choice(theme)
        await asyncio.sleep(PAINT_S)
        _save(app.window, folder / f"{number}-{theme}.png")
    _save(app.window.panel, folder / f"{number}-panel.png")


def _save(widget: QWidget, path: Path) -> None:
    if not widget.grab().save(str(path)):
        raise DemoError(f"{path} could not be written; choose another folder with --shots.")


def _has_ended(chat: Session) -> bool:
    reply = chat.record.turns[0].reply if chat.record.turns else None
    return reply is not None and reply.state != "streaming"


def _num_chars(chat: Session) -> int:
    reply = chat.record.turns[0].reply if chat.record.turns else None
    return len(reply.text) if reply else 0


async def _until(is_true: Callable[[], bool], seconds: float, what: str) -> None:
    """Look every frame, beside everything else that goes on.

    Raises:
        DemoError: it did not become true in time.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + seconds
    while not is_true():
        if loop.time() > deadline_s:
            raise DemoError(f"The demo gave up: the model did not {what} within {seconds:.0f} s.")
        await asyncio.sleep(0.03)
