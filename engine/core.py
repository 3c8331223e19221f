"""Engine: takes commands, plans a step, runs it, samples, and says what happened.

Lives on one thread. Everything that arrives from elsewhere (commands, rendered templates) comes
through `handle`; everything it has to say is collected and handed over by `flush`, once per step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from engine.config import EngineConfig
from engine.errors import RequestError, SamplingError
from engine.intake import Intake, Tokenised, fork
from engine.loading import Loader
from engine.messages import (
    Accepted,
    Cancel,
    Command,
    Event,
    Failed,
    Finished,
    FinishReason,
    Fork,
    LoadModel,
    ModelFailed,
    ModelLoaded,
    ModelUnloaded,
    Notice,
    Pin,
    ReleaseOwner,
    SetPriority,
    StepEvents,
    StepStats,
    Submit,
    TextDelta,
    UnloadModel,
    Unpin,
    Usage,
)
from engine.reply import Reply
from engine.sequence import Sequence
from engine.serving import Serving
from engine.stepper import Sampled, Stepper

log = logging.getLogger(__name__)

SNAPSHOT_INTERVAL_S = 0.05


class Engine:
    """One model, one pool, and the requests that run on them.

    Args:
        post: puts a `Tokenised` into this engine's inbox; may be called from another thread.
        publish: receives what `flush` hands over.
        ending: True once the engine shall end; a load under way gives up.
        load_cancelled: True while the load under way is cancelled.
    """

    def __init__(
        self,
        config: EngineConfig,
        post: Callable[[Tokenised], None],
        publish: Callable[[StepEvents], None],
        ending: Callable[[], bool] = lambda: False,
        load_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config = config
        self._intake = Intake(config, post)
        self._publish = publish
        self._loader = Loader(config, self._say_now, ending, load_cancelled)
        self._serving: Serving | None = None
        self._stepper: Stepper | None = None
        self._replies: dict[int, Reply] = {}
        self._pinned_messages: dict[int, int | None] = {}  # owner -> from the start, None = all
        self._events: list[Event] = []
        self._stats: StepStats | None = None
        self._ran_s = 0.0  # end of the last step's computing
        self._sent_version = -1
        self._sent_s = 0.0

    @property
    def is_idle(self) -> bool:
        return self._serving is None or self._serving.scheduler.is_idle

    def close(self) -> None:
        self._intake.close()

    # --- commands -------------------------------------------------------------------------------

    def handle(self, command: Command | Tokenised) -> None:
        match command:
            case LoadModel(path):
                self._load(Path(path))
            case UnloadModel():
                self._unload("The model was unloaded while this reply was being written.")
                self._events.append(ModelUnloaded())
            case Submit():
                self._submit(command)
            case Tokenised():
                self._enqueue(command)
            case Fork():
                self._fork(command)
            case Cancel(request_id):
                self._cancel(request_id)
            case SetPriority() | Pin() | Unpin() | ReleaseOwner():
                if self._serving:
                    self._tend(command, self._serving)

    def _tend(self, command: SetPriority | Pin | Unpin | ReleaseOwner, serving: Serving) -> None:
        """Commands that change what becomes of blocks, and nobody's reply."""
        scheduler = serving.scheduler
        match command:
            case SetPriority(request_id, priority):
                if reply := self._replies.get(request_id):
                    scheduler.set_priority(reply.sequence, priority)
            case Pin(owner, num_messages):
                self._pinned_messages[owner] = num_messages
                scheduler.pin(owner, 0 if num_messages is not None else None)
            case Unpin(owner):
                self._pinned_messages.pop(owner, None)
                scheduler.unpin(owner)
            case ReleaseOwner(owner):
                self._pinned_messages.pop(owner, None)
                scheduler.unpin(owner)
                serving.pool.drop_cached(owner)

    def _load(self, path: Path) -> None:
        if self._serving is not None and (refused := self._loader.refusal(path)):
            self._events.append(refused)
            return
        self._unload(
            "The model was changed while this reply was being written; ask again to have it from "
            "the new one."
        )
        loaded = self._loader.load(path)
        if isinstance(loaded, ModelFailed):
            self._events.append(loaded)
        if not isinstance(loaded, Serving):
            return
        self._serving = loaded
        self._stepper = Stepper(loaded)
        self._intake.start_worker()
        self._events.append(ModelLoaded(loaded.info))

    def _say_now(self, event: Event) -> None:
        self._events.append(event)
        self.flush()

    def _unload(self, reason: str) -> None:
        for request_id in [*self._intake.request_ids, *self._replies]:
            self._fail(request_id, reason)
        self._serving = self._stepper = None
        self._pinned_messages.clear()
        self._sent_version = -1

    # --- new requests -----------------------------------------------------------------------------

    def _submit(self, submit: Submit) -> None:
        if self._is_used(submit.request_id, *submit.siblings):
            return
        if self._serving is None:
            sentence = "No model is loaded; open one first."
            for request_id in (submit.request_id, *submit.siblings):
                self._events.append(Failed(request_id, sentence))
            return
        self._intake.add(submit, self._serving.text)

    def _is_used(self, *request_ids: int) -> bool:
        """A caller's mistake. To fail the request would be to fail the one that has the number."""
        used = [i for i in request_ids if i in self._intake or i in self._replies]
        if used or len(set(request_ids)) < len(request_ids):
            self._events.append(
                Notice(f"A request was left out: its number ({request_ids[0]}) is in use.")
            )
            return True
        return False

    def _enqueue(self, ready: Tokenised) -> None:
        """Put the replies to a prompt in line, unless they were cancelled on the way."""
        if self._serving is None:
            return  # the model went away, and its requests have been told
        submit = ready.submit
        try:
            replies = self._intake.take(ready, self._serving)
        except RequestError as error:
            for request_id in (submit.request_id, *submit.siblings):
                if self._intake.drop(request_id):
                    self._events.append(Failed(request_id, str(error)))
            return
        if replies and submit.owner in self._pinned_messages:
            self._pin_messages(ready, self._serving)
        for reply in replies:
            self._line_up(reply)

    def _fork(self, command: Fork) -> None:
        parent, serving = self._replies.get(command.parent_id), self._serving
        if self._is_used(command.request_id):
            return
        if parent is None or serving is None:
            sentence = "The reply to branch from has ended; ask again from its messages."
            self._events.append(Failed(command.request_id, sentence))
            return
        try:
            self._line_up(fork(command, parent.sequence, serving))
        except RequestError as error:
            self._events.append(Failed(command.request_id, str(error)))

    def _line_up(self, reply: Reply) -> None:
        assert self._serving is not None
        sequence = reply.sequence
        self._replies[reply.request_id] = reply
        self._serving.scheduler.add(sequence)
        self._events.append(
            Accepted(reply.request_id, sequence.num_prompt, sequence.limit_tokens, reply.notes)
        )
        self._say_states()

    def _pin_messages(self, ready: Tokenised, serving: Serving) -> None:
        """From this request on, what is pinned for its owner is as long as these messages are."""
        number = self._pinned_messages[ready.submit.owner]
        starts = ready.message_starts
        if number is None or number >= len(starts):
            serving.scheduler.pin(ready.submit.owner, None)
        else:
            serving.scheduler.pin(ready.submit.owner, max(0, starts[number]))

    def _cancel(self, request_id: int) -> None:
        """The one way out for stop, closed tabs and clients that left, in every phase."""
        if self._intake.drop(request_id):
            usage = Usage(0, 0, 0, 0.0, 0.0, 0, 0, 0)
            self._events.append(Finished(request_id, "cancelled", usage))
        elif request_id in self._replies:
            self._finish(self._replies[request_id], "cancelled", flush_text=True)

    # --- one step -------------------------------------------------------------------------------

    def step(self) -> None:
        """One forward pass over whatever the scheduler chose."""
        assert self._stepper is not None
        result = self._stepper.run()
        self._ran_s = time.perf_counter()
        for sequence in result.admitted:
            self._say_prefix(sequence)
        self._stats = result.stats or self._stats
        for sampled in result.sampled:
            self._advance(sampled)
        if result.notice:
            self._events.append(Notice(result.notice))
        if result.hopeless is not None:
            sentence = (
                "There is not enough memory to go on with this reply; close other programs, or "
                "take a smaller model."
            )
            self._fail(result.hopeless.request_id, sentence)
        self._say_states()

    def _advance(self, sampled: Sampled) -> None:
        assert self._serving is not None
        reply, token = self._replies[sampled.sequence.request_id], sampled.token
        if isinstance(token, SamplingError):
            self._fail(reply.request_id, str(token))
            return
        try:
            text, reason = reply.take(token, time.monotonic(), self._serving.text.eos_ids)
        except Exception as error:  # of this reply's text: the others go on
            log.exception("request %d", reply.request_id)
            sentence = f"The reply's text could not be made ({type(error).__name__}: {error})."
            self._fail(reply.request_id, sentence)
            return
        self._events.append(TextDelta(reply.request_id, text, (token,), sampled.logprobs))
        if reason:
            self._finish(reply, reason)

    def _finish(self, reply: Reply, reason: FinishReason, flush_text: bool = False) -> None:
        if flush_text and (rest := reply.stream.finish()):
            self._events.append(TextDelta(reply.request_id, rest, ()))
        usage = self._end(reply)
        self._events.append(Finished(reply.request_id, reason, usage))

    def _fail(self, request_id: int, message: str) -> None:
        self._intake.drop(request_id)
        reply = self._replies.get(request_id)
        usage = self._end(reply) if reply else None
        self._events.append(Failed(request_id, message, usage))

    def _end(self, reply: Reply) -> Usage:
        assert self._serving is not None
        usage = reply.usage(self._serving.pool.block_bytes)
        self._serving.scheduler.end(reply.sequence)
        del self._replies[reply.request_id]
        return usage

    # --- what the step has to say -----------------------------------------------------------------

    def _say_states(self) -> None:
        """One StateChanged for each request whose state is not what was said last."""
        if self._serving is None:
            return
        scheduler = self._serving.scheduler
        places = [(sequence, 0) for sequence in scheduler.running]
        places += [(sequence, i + 1) for i, sequence in enumerate(scheduler.waiting)]
        for sequence, place in places:
            reply = self._replies[sequence.request_id]
            state = reply.state(place)
            if state != reply.last_state:
                reply.last_state = state
                self._events.append(state)

    def _say_prefix(self, sequence: Sequence) -> None:
        """Once for each request, when it is first admitted."""
        reply = self._replies[sequence.request_id]
        if reply.has_said_prefix:
            return
        reply.has_said_prefix = True
        assert self._serving is not None
        self._events.append(reply.prefix(self._serving.text.bytes_of))

    def flush(self) -> None:
        """Hand over what was said since the last call, and a picture of the pool when it changed
        and 50 ms have passed, or when work has ended."""
        pool = self._serving.pool if self._serving else None
        picture = None
        now_s = time.monotonic()
        is_due = self.is_idle or now_s - self._sent_s >= SNAPSHOT_INTERVAL_S
        if pool and pool.version != self._sent_version and is_due:
            picture = pool.snapshot()
            self._sent_version, self._sent_s = pool.version, now_s
        if self.is_idle:
            self._check_idle()
        if self._stats:
            text_ms = (time.perf_counter() - self._ran_s) * 1000
            self._stats = replace(self._stats, parts_ms=(*self._stats.parts_ms[:-1], text_ms))
        if self._events or self._stats or picture:
            step_events = StepEvents(tuple(self._events), self._stats, picture)
            self._events, self._stats = [], None
            self._publish(step_events)

    def _check_idle(self) -> None:
        """Nothing runs: every block must be FREE or CACHED again."""
        if self._serving:
            self._serving.pool.check_idle()
            assert not self._replies
