"""TemplateWorker: chat messages -> prompt text, in one child process that may be killed any time.

A chat template is a program that came with a downloaded model. Nothing here runs it: the child
(`template_child.py`, Jinja only) does, within 2 s and 4 MiB, and is replaced when it overruns.
Standard library only.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import IO

from engine import message_starts
from engine.messages import ChatMessage

RENDER_LIMIT_S = 2.0
START_LIMIT_S = 60.0  # a cold disk and a busy machine; the first render waits for it
ALONE_LIMIT_S = 4  # after this the child ends itself, should the parent be gone
TEXT_LIMIT_BYTES = 4 << 20
# Where messages begin is found by rendering once more: only while that costs next to nothing.
MARK_LIMIT_BYTES = 1 << 20
MARK_LIMIT_S = 1.0

# For a model that brings no template (most were never trained to chat): names before each text,
# as in a play, and a stop at the next turn of the user.
PLAIN_TEMPLATE = (
    "{% if adds_bos %}{{ bos_token }}{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ message.content }}\n\n"
    "{% elif message.role == 'user' %}User: {{ message.content }}\n"
    "{% else %}Assistant: {{ message.content }}\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
PLAIN_STOP = ("\nUser:",)  # stop strings that go with it

SYSTEM_FOLDED = (
    "This model takes no system prompt, so its text was put before the first user message."
)
NEIGHBOURS_MERGED = (
    "This model wants user and assistant to take turns, so messages in a row were joined."
)
_TRIED = (
    "Joining messages in a row and moving the system prompt were tried and did not help; change "
    "the messages, or choose another model."
)
_CLOSED = "The template worker was closed before the messages were prepared."


@dataclass(frozen=True, slots=True)
class RenderResult:
    """The prompt text, or why there is none.

    `guard` stands behind the first letter of whatever in a message looks like a control token;
    `engine.text.Text.encode_rendered` needs it. `repaired` says what was changed to make a strict
    template accept the messages. `starts` has a place in `text` for each message as it was given,
    where its content begins without leading spaces; -1 where the template dropped or changed it.
    """

    text: str = ""
    guard: str = ""
    error: str = ""  # one sentence, "" when rendered
    repaired: tuple[str, ...] = ()
    starts: tuple[int, ...] = ()


Done = Callable[[int, RenderResult], None]


@dataclass(frozen=True, slots=True)
class _Job:
    job_id: int
    template: str
    messages: tuple[ChatMessage, ...]
    variables: Mapping[str, object]
    special: tuple[str, ...]
    done: Done


class TemplateWorker:
    """Renders one job after another. `start`, `render` and `close` belong to one thread.

    `done(job_id, result)` is called once per job: on the worker's own thread, or by `render`
    itself when the worker is not running.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._child: _Child | None = None
        self._closing = False

    def start(self) -> None:
        """Start thread and child; returns at once. Again after `close` is an error."""
        assert self._thread is None
        assert not self._closing
        self._thread = threading.Thread(target=self._run, name="template-worker", daemon=True)
        self._thread.start()

    def render(
        self,
        job_id: int,
        template: str | None,
        messages: tuple[ChatMessage, ...],
        variables: Mapping[str, object],
        done: Done,
        *,
        special: Sequence[str],
    ) -> None:
        """Ask for one prompt; returns at once.

        `template` None or "" means PLAIN_TEMPLATE. `variables` are plain JSON values.
        `special` are the texts of the model's control tokens (`Text.special_tokens`).
        """
        source = template or PLAIN_TEMPLATE
        job = _Job(job_id, source, messages, dict(variables), tuple(special), done)
        if self._thread is None or self._closing:
            done(job_id, RenderResult(error=_CLOSED))
        else:
            self._jobs.put(job)

    def close(self) -> None:
        """End child and thread; what waits gets an error. Returns within a second."""
        self._closing = True
        self._jobs.put(None)
        child = self._child
        if child is not None:
            child.kill()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    # --- the worker's own thread --------------------------------------------------------------

    def _run(self) -> None:
        self._open_child()  # now, so that the first message does not wait for Python to start
        while (job := self._jobs.get()) is not None:
            job.done(job.job_id, self._result(job))
        if self._child is not None:
            self._child.end()

    def _open_child(self) -> _Child | None:
        """The living child, a new one if need be; None when it cannot be started."""
        if self._child is not None and not self._child.is_alive:
            self._child.end()
            self._child = None
        if self._child is None and not self._closing:
            try:
                self._child = _Child()
            except OSError:
                return None
            if self._closing:  # closed while it started, so nobody else kills it
                self._child.kill()
        return self._child

    def _result(self, job: _Job) -> RenderResult:
        contents = [message.content for message in job.messages]
        size = sum(len(text.encode("utf-8", "replace")) for text in contents)
        if size > TEXT_LIMIT_BYTES:
            return RenderResult(error=_too_long(size))
        guard = _free_guard([job.template, *contents])
        mark = functools.partial(_marked, special=job.special, guard=guard)
        first_error = ""
        for number, (messages, notes) in enumerate(_variants(job.messages)):
            began_s = time.monotonic()
            reply = self._ask(job, messages, mark)
            if "text" in reply:
                # A template that escapes as ASCII would leave the guard spelled out.
                text = reply["text"].replace(_spelled(guard), guard)
                is_quick = size <= MARK_LIMIT_BYTES and time.monotonic() - began_s < MARK_LIMIT_S
                starts = self._marked_starts(job, number, text, mark) if is_quick else None
                starts = starts or message_starts.by_search(text, map(mark, contents))
                return RenderResult(text, guard, repaired=notes, starts=starts)
            first_error = first_error or _sentence(reply)
            if reply["kind"] not in ("refused", "failed"):
                break
        return RenderResult(error=first_error)

    def _marked_starts(
        self, job: _Job, number: int, text: str, mark: Callable[[str], str]
    ) -> tuple[int, ...] | None:
        """Where each message's content begins in `text`, found by rendering variant `number` again
        with marks; None where that gives another text."""
        texts = [job.template, text, *(message.content for message in job.messages)]
        marks = message_starts.free_marks(texts, len(job.messages))
        if len(marks) < len(job.messages):
            return None
        messages = message_starts.with_marks(job.messages, marks)
        messages, _ = next(itertools.islice(_variants(messages), number, None))
        return message_starts.by_marks(self._ask(job, messages, mark).get("text", ""), text, marks)

    def _ask(
        self, job: _Job, chat: tuple[ChatMessage, ...], mark: Callable[[str], str]
    ) -> dict[str, str]:
        """The child's answer: {"text"} or {"error", "kind"}."""
        messages = [{"role": m.role, "content": mark(m.content)} for m in chat]
        defaults = {"tools": None, "documents": None, "add_generation_prompt": True}
        request = {
            "template": job.template,
            "variables": {**defaults, **job.variables, "messages": messages},
            "limit_bytes": TEXT_LIMIT_BYTES,
            "alone_s": ALONE_LIMIT_S,
        }
        reply = {"error": "", "kind": "crash"}
        for _ in range(2):  # a child may have been killed while it was idle: once more, anew
            child = None if self._closing else self._open_child()
            if child is not None:
                reply = child.ask(request)
            if reply.get("kind") != "crash":
                return reply
        return {"error": "", "kind": "closed"} if self._closing else reply


class _Child:
    """One child process and the pipes to it. Only `kill` may be called from another thread."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("template_child.py")
        # -I: the child sees neither our folders nor the user's; only the installed packages.
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
        self._ready = False
        self._killed = False

    @property
    def is_alive(self) -> bool:
        return not self._killed and self._process.poll() is None

    def kill(self) -> None:
        self._killed = True
        self._process.kill()

    def end(self) -> None:
        """Kill, close the pipes and take the exit status, so that nothing stays behind."""
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                _given(pipe).close()
            except OSError:
                continue  # what was still to be written has no reader: as wanted
        self._process.wait()

    def ask(self, request: Mapping[str, object]) -> dict[str, str]:
        """The answer, or {"kind": "time"} or {"kind": "crash"}; after either the child is dead."""
        line = json.dumps(request).encode("ascii") + b"\n"
        if not self._ready:
            started = self._exchange(b"", START_LIMIT_S)
            if "kind" in started:
                return {"error": "", "kind": "crash"}
            self._ready = True
        return self._exchange(line, RENDER_LIMIT_S)

    def _exchange(self, line: bytes, limit_s: float) -> dict[str, str]:
        late = threading.Event()

        def stop() -> None:
            late.set()
            self.kill()  # the one way to end a blocking read that works on every system

        timer = threading.Timer(limit_s, stop)
        timer.daemon = True
        timer.start()
        try:
            if line:
                _given(self._process.stdin).write(line)
                _given(self._process.stdin).flush()
            answer = _given(self._process.stdout).readline()
            reply: dict[str, str] = json.loads(answer)
        except (OSError, ValueError):  # a broken pipe, or half an answer
            self.kill()
            return {"error": "", "kind": "time" if late.is_set() else "crash"}
        finally:
            timer.cancel()
        return reply


def _given(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


# --- messages that a strict template refuses ----------------------------------------------------


def _variants(
    messages: tuple[ChatMessage, ...],
) -> Iterator[tuple[tuple[ChatMessage, ...], tuple[str, ...]]]:
    """(messages, what was changed): as given, then what strict templates accept, least first."""
    yield messages, ()
    merged, folded = _merge_neighbours(messages), _fold_system(messages)
    if merged != messages:
        yield merged, (NEIGHBOURS_MERGED,)
    if folded != messages:
        yield folded, (SYSTEM_FOLDED,)
        both = _merge_neighbours(folded)
        if both != folded:
            yield both, (SYSTEM_FOLDED, NEIGHBOURS_MERGED)


def _fold_system(messages: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
    system = [m.content for m in messages if m.role == "system"]
    others = [m for m in messages if m.role != "system"]
    if not system:
        return messages
    first = next((i for i, m in enumerate(others) if m.role == "user"), None)
    if first is None:
        return (ChatMessage("user", "\n\n".join(system)), *others)
    text = "\n\n".join([*system, others[first].content])
    return (*others[:first], ChatMessage("user", text), *others[first + 1 :])


def _merge_neighbours(messages: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
    merged: list[ChatMessage] = []
    for message in messages:
        if merged and merged[-1].role == message.role:
            parts = [text for text in (merged.pop().content, message.content) if text]
            message = ChatMessage(message.role, "\n\n".join(parts))
        merged.append(message)
    return tuple(merged)


# --- control tokens in messages -----------------------------------------------------------------


def _free_guard(texts: Sequence[str]) -> str:
    """A character that occurs in no text, not even spelled out as `\\ufdd0`.

    First the noncharacters, which no text should hold anyway. Should a text
    hold them all, one of the 131,072 private ones of the last two planes.
    """
    used = set().union(*texts)
    codes = itertools.chain(range(0xFDD0, 0xFDF0), range(0xF0000, 0x110000))
    free = (letter for letter in map(chr, codes) if letter not in used)
    return next(a for a in free if not any(_spelled(a) in text for text in texts))


def _spelled(letter: str) -> str:
    return json.dumps(letter)[1:-1]


def _marked(text: str, special: tuple[str, ...], guard: str) -> str:
    """`text` with the guard behind the first letter of each control token in it."""
    pattern = _starts(special)
    return pattern.sub(rf"\g<1>{guard}", text) if pattern else text


@functools.lru_cache(maxsize=8)
def _starts(special: tuple[str, ...]) -> re.Pattern[str] | None:
    """One letter at which a control token starts; overlapping ones are found as well.

    Grouped by first letter, so that a long text costs one comparison per letter and not one per
    control token (some models have thousands).
    """
    by_letter: dict[str, list[str]] = {}
    for token in filter(None, special):
        by_letter.setdefault(token[0], []).append(re.escape(token[1:]))
    if not by_letter:
        return None
    groups = (f"{re.escape(a)}(?=(?:{'|'.join(rest)}))" for a, rest in by_letter.items())
    return re.compile(f"({'|'.join(groups)})")


# --- sentences ----------------------------------------------------------------------------------


def _too_long(size: int) -> str:
    return (
        f"The messages are {size / 2**20:.1f} MiB long, and at most "
        f"{TEXT_LIMIT_BYTES >> 20} MiB can be prepared; shorten the chat."
    )


def _sentence(reply: Mapping[str, str]) -> str:
    """What went wrong, for the user, with the template's own words."""
    words = " ".join(reply["error"].split())[:300].rstrip(".") + "."
    return {
        "refused": f"The model's chat template refused the messages: {words} {_TRIED}",
        "failed": f"The model's chat template failed on these messages: {words} {_TRIED}",
        "syntax": f"The model's chat template is not valid: {words} Choose another model.",
        "size": f"The model's chat template made more than {TEXT_LIMIT_BYTES >> 20} MiB of text.",
        "time": f"The model's chat template took longer than {RENDER_LIMIT_S:g} s and was stopped.",
        "crash": "The process that prepares chat messages ended unexpectedly; send again.",
        "closed": _CLOSED,
    }[reply["kind"]]
