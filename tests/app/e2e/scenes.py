"""Scenes with the real application, played in a process of its own: `scenes.py NAME DATA_DIR`.

Each prints lines that the test waits for. Everything is asked for through intents, as by clicks.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable

from app.main import App, run
from app.options import parse
from app.records import Sampling
from app.state.session import Session

PROMPTS = ["Tell me a very long story about cats.", "Tell me a very long story about dogs."]


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


async def until(is_true: Callable[[], bool], seconds: float = 90.0) -> None:
    deadline_s = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline_s, "what the scene waits for does not come"
        await asyncio.sleep(0.02)


def has_ended(chat: Session) -> bool:
    reply = chat.record.turns[0].reply
    return reply is not None and reply.state != "streaming"


async def two_chats_stream(app: App) -> None:
    """Until both have written a few words."""
    app.chats.default_sampling = Sampling(temperature=0.0, max_tokens=3000)
    await until(lambda: app.status.phase in ("ready", "failed"))
    app.intents.send_all.emit(PROMPTS)
    chats = [app.sessions.get(one) for one in app.sessions.tabs[-2:]]
    await until(
        lambda: all(
            chat is not None
            and chat.record.turns
            and chat.record.turns[0].reply is not None
            and len(chat.record.turns[0].reply.text) > 30
            for chat in chats
        )
    )


async def quit_midstream(app: App) -> int:
    await two_chats_stream(app)
    say(streaming=app.status.num_generating)
    app.window.close()  # as the user does
    return 0


async def quit_while_loading(app: App) -> int:
    await until(lambda: app.status.phase == "loading")
    say(phase=app.status.phase)
    app.window.close()
    return 0


async def stream_until_killed(app: App) -> int:
    await two_chats_stream(app)
    while True:
        texts = [
            chat.record.turns[0].reply.text
            for chat in app.sessions.all
            if chat.record.turns and chat.record.turns[0].reply is not None
        ]
        say(texts=texts)
        await asyncio.sleep(0.05)


async def reopen(app: App) -> int:
    """Say what the window shows after a crash."""
    await until(lambda: len(app.sessions.all) > 0)
    chats = [chat.record for chat in app.sessions.all if chat.record.turns]
    replies = [record.turns[0].reply for record in chats]
    say(
        states=[reply.state for reply in replies if reply],
        texts=[reply.text for reply in replies if reply],
        tabs=len(app.sessions.tabs),
    )
    return 0


async def stay(app: App) -> int:
    """Be there, minimised; say when the window is asked to the front."""
    await until(lambda: app.window.isVisible())
    app.window.showMinimized()
    await until(lambda: app.window.isMinimized())
    say(up=True)
    await until(lambda: not app.window.isMinimized())
    say(raised=app.window.isVisible())
    return 0


async def too_long(app: App) -> int:
    """A megabyte, a prompt a little over the context, and one that is fine: all at once."""
    app.chats.default_sampling = Sampling(temperature=0.0, max_tokens=20)
    await until(lambda: app.status.phase == "ready")
    app.intents.send_all.emit(["x " * 500_000, "Why? " * 6000, "Say hello."])
    chats = [app.sessions.get(one) for one in app.sessions.tabs[-3:]]
    await until(lambda: all(chat.record.turns and has_ended(chat) for chat in chats if chat))
    replies = [chat.record.turns[0].reply for chat in chats if chat]
    say(
        states=[reply.state for reply in replies if reply],
        errors=[reply.error for reply in replies if reply],
        kept=[len(chat.record.turns[0].user_text) for chat in chats if chat],
    )
    return 0


async def bad_model(app: App) -> int:
    """A file that is no model: a sentence, and the window goes on with another one."""
    await until(lambda: app.status.phase == "failed")
    say(message=app.status.message, visible=app.window.isVisible())
    return 0


if __name__ == "__main__":
    scene = globals()[sys.argv[1]]
    sys.exit(run(parse(sys.argv[2:]), scene))
