"""Engine: takes commands, plans a step, runs it, samples, and says what happened.

Lives on one thread. Everything that arrives from elsewhere (commands, rendered templates) comes
through `handle`; everything it has to say is collected and handed over by `flush`, once per step.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.batch import build_batch
from engine.config import EngineConfig
from engine.device import num_threads
from engine.errors import (
    EmptyPromptError,
    RequestError,
    SamplingError,
    TemplateError,
    TesseraError,
)
from engine.messages import (
    Accepted,
    Cancel,
    Command,
    Event,
    Failed,
    Finished,
    FinishReason,
    LoadModel,
    Logprobs,
    ModelFailed,
    ModelLoaded,
    ModelLoading,
    ModelUnloaded,
    ReleaseOwner,
    StepEvents,
    StepStats,
    Submit,
    TextDelta,
    UnloadModel,
    Usage,
)
from engine.reply import Reply
from engine.sampling import SampleRow, check_bias, sample, top_logprobs
from engine.scheduler import StepItem, StepPlan
from engine.sequence import Sequence
from engine.serving import Serving, check_model, open_model
from engine.template_worker import PLAIN_STOP, RenderResult, TemplateWorker

log = logging.getLogger(__name__)

SNAPSHOT_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class Tokenised:
    """Internal command: a prompt became tokens (or an error), on the template worker's thread."""

    submit: Submit
    token_ids: tuple[int, ...]
    error: str = ""
    notes: tuple[str, ...] = ()  # what was changed to make a strict template accept the messages
    stop: tuple[str, ...] = ()  # stop strings that the prompt's form adds


class LoadingStopped(Exception):
    """Raised out of a load when the engine is asked to end."""


class Engine:
    """One model, one pool, and the requests that run on them.

    Args:
        post: puts a `Tokenised` into this engine's inbox; may be called from another thread.
        publish: receives what `flush` hands over.
        ending: True once the engine shall end; a load under way gives up.
    """

    def __init__(
        self,
        config: EngineConfig,
        post: Callable[[Tokenised], None],
        publish: Callable[[StepEvents], None],
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config = config
        self._post = post
        self._publish = publish
        self._ending = ending
        self._serving: Serving | None = None
        self._replies: dict[int, Reply] = {}
        self._rendering: dict[int, tuple[Submit, float]] = {}
        self._worker = TemplateWorker()
        self._worker_started = False
        self._events: list[Event] = []
        self._stats: StepStats | None = None
        self._sent_version = -1
        self._sent_s = 0.0
        torch.set_num_threads(num_threads(config))

    @property
    def is_idle(self) -> bool:
        return self._serving is None or self._serving.scheduler.is_idle

    def close(self) -> None:
        self._worker.close()

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
            case Cancel(request_id):
                self._cancel(request_id)
            case ReleaseOwner(owner):
                if self._serving:
                    self._serving.pool.drop_cached(owner)

    def _load(self, path: Path) -> None:
        if self._serving is not None and (problem := self._problem(path)):
            self._events.append(ModelFailed(str(path), problem, is_kept=True))
            return
        self._unload(
            "The model was changed while this reply was being written; ask again to have it from "
            "the new one."
        )

        def progress(fraction: float, note: str) -> None:
            if self._ending():
                raise LoadingStopped
            self._events.append(ModelLoading(str(path), fraction, note))
            self.flush()

        try:
            progress(0.0, "Opening the file")
            serving = open_model(path, self._config, progress)
        except LoadingStopped:
            return
        except Exception as error:  # a stranger's file: whatever it provokes ends this load only
            self._events.append(ModelFailed(str(path), _load_sentence(path, error)))
            return
        self._serving = serving
        if not self._worker_started:
            self._worker.start()
            self._worker_started = True
        self._events.append(ModelLoaded(serving.info))

    def _problem(self, path: Path) -> str:
        """Why a model cannot be loaded: asked before the present one is given up for it."""
        try:
            check_model(path, self._config)
        except Exception as error:  # as in `_load`
            return _load_sentence(path, error)
        return ""

    def _unload(self, reason: str) -> None:
        for request_id in [*self._rendering, *self._replies]:
            self._fail(request_id, reason)
        self._serving = None
        self._sent_version = -1

    def _submit(self, submit: Submit) -> None:
        """Turn the messages into tokens; with a template that happens on the worker."""
        if submit.request_id in self._rendering or submit.request_id in self._replies:
            raise AssertionError(f"request_id {submit.request_id} is in use")
        if self._serving is None:
            self._events.append(Failed(submit.request_id, "No model is loaded; open one first."))
            return
        self._rendering[submit.request_id] = (submit, time.monotonic())
        text = self._serving.text
        if submit.prompt is not None:
            self._enqueue(Tokenised(submit, tuple(text.encode_raw(submit.prompt))))
            return

        def done(_: int, result: RenderResult) -> None:
            # On the worker's reader thread: a pasted megabyte is tokenised beside the steps.
            if result.error:
                self._post(Tokenised(submit, (), result.error))
            else:
                token_ids = tuple(text.encode_rendered(result.text, result.guard))
                stop = () if text.template else PLAIN_STOP
                self._post(Tokenised(submit, token_ids, notes=result.repaired, stop=stop))

        self._worker.render(
            submit.request_id,
            text.template,
            submit.messages,
            text.variables,
            done,
            special=tuple(text.special_tokens),
        )

    def _enqueue(self, ready: Tokenised) -> None:
        submit = ready.submit
        waiting = self._rendering.pop(submit.request_id, None)
        if waiting is None or self._serving is None:
            return  # cancelled, or the model went away, while the template was rendered
        try:
            self._accept(ready, self._serving, waiting[1])
        except RequestError as error:
            self._events.append(Failed(submit.request_id, str(error)))

    def _accept(self, ready: Tokenised, serving: Serving, submitted_s: float) -> None:
        submit = ready.submit
        if ready.error:
            raise TemplateError(ready.error)
        if not ready.token_ids:
            raise EmptyPromptError("The prompt is empty; write something first")
        if max(ready.token_ids) >= serving.model.vocab_size:  # there are folders like that
            raise RequestError(
                "The prompt holds a token that this model's weights do not know; leave special "
                "tokens out, or choose another copy of the model"
            )
        check_bias(submit.params, serving.model.vocab_size)
        num_prompt = len(ready.token_ids)
        limit = serving.check_length(num_prompt, submit.params)
        params = submit.params
        sequence = Sequence(
            request_id=submit.request_id,
            token_ids=list(ready.token_ids),
            num_prompt=num_prompt,
            limit_tokens=limit,
            params=params,
            owner=submit.owner,
            seed=secrets.randbits(63) if params.seed is None else params.seed,
            use_prefix_cache=self._config.prefix_cache and submit.use_prefix_cache,
        )
        reply = Reply(sequence, serving.text.stream((*params.stop, *ready.stop)), submitted_s)
        self._replies[submit.request_id] = reply
        serving.scheduler.add(sequence)
        self._events.append(Accepted(submit.request_id, num_prompt, limit, ready.notes))
        self._say_states()

    def _cancel(self, request_id: int) -> None:
        """The one way out for stop, closed tabs and clients that left, in every phase."""
        if self._rendering.pop(request_id, None):
            usage = Usage(0, 0, 0, 0.0, 0.0, 0, 0, 0)
            self._events.append(Finished(request_id, "cancelled", usage))
        elif request_id in self._replies:
            self._finish(self._replies[request_id], "cancelled", flush_text=True)

    # --- one step -------------------------------------------------------------------------------

    def step(self) -> None:
        """One forward pass over whatever the scheduler chose."""
        serving = self._serving
        assert serving is not None
        start_s = time.monotonic()
        plan = serving.scheduler.plan()
        if not plan.items:
            self._say_states()
            return
        batch = build_batch(plan, serving.pool.block_tokens, serving.device)
        with torch.inference_mode():
            logits = serving.model.forward(batch, serving.cache)
        ready = [
            i for i in plan.items if i.sequence.num_computed + i.num_tokens == i.sequence.num_tokens
        ]
        rows = [_row(item.sequence, serving.text.eos_ids) for item in ready]
        tokens = sample(logits, rows) if ready else []
        logprobs = top_logprobs(logits, rows, tokens, serving.text.bytes_of)
        serving.scheduler.commit(plan)
        self._stats = self._measure(plan, start_s, serving)
        for item, token, said in zip(ready, tokens, logprobs, strict=True):
            self._advance(item, token, said)
        self._say_states()

    def _advance(
        self, item: StepItem, token: int | SamplingError, logprobs: tuple[Logprobs, ...]
    ) -> None:
        reply = self._replies[item.sequence.request_id]
        if isinstance(token, SamplingError):
            self._fail(reply.request_id, str(token))
            return
        assert self._serving is not None
        text, reason = reply.take(token, time.monotonic(), self._serving.text.eos_ids)
        self._events.append(TextDelta(reply.request_id, text, (token,), logprobs))
        if reason:
            self._finish(reply, reason)

    def _finish(self, reply: Reply, reason: FinishReason, flush_text: bool = False) -> None:
        if flush_text and (rest := reply.stream.finish()):
            self._events.append(TextDelta(reply.request_id, rest, ()))
        usage = self._end(reply)
        self._events.append(Finished(reply.request_id, reason, usage))

    def _fail(self, request_id: int, message: str) -> None:
        self._rendering.pop(request_id, None)
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

    def _measure(self, plan: StepPlan, start_s: float, serving: Serving) -> StepStats:
        written, held = serving.scheduler.slots()
        now_s = time.monotonic()
        return StepStats(
            num_prefill_tokens=sum(item.num_tokens for item in plan.prompts),
            num_decode_tokens=len(plan.decodes),
            step_ms=(now_s - start_s) * 1000,
            num_running=len(serving.scheduler.running),
            num_waiting=len(serving.scheduler.waiting),
            waste_ratio=1 - written / held if held else 0.0,
            time_s=now_s,
            written_slots=written,
            held_slots=held,
            num_used_blocks=serving.pool.num_used,
        )

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
        if self._events or self._stats or picture:
            step_events = StepEvents(tuple(self._events), self._stats, picture)
            self._events, self._stats = [], None
            self._publish(step_events)

    def _check_idle(self) -> None:
        """Nothing runs: every block must be FREE or CACHED again."""
        if self._serving:
            pool = self._serving.pool
            assert pool.num_available == pool.num_blocks, pool.counts()
            assert not self._replies


def _load_sentence(path: Path, error: Exception) -> str:
    if isinstance(error, MemoryError):
        return f"There is not enough memory for {path.name}; take a smaller model."
    if isinstance(error, TesseraError | OSError):
        return str(error)
    log.error("loading %s", path, exc_info=error)
    return f"{path.name} cannot be loaded ({type(error).__name__}: {error})."


def _row(sequence: Sequence, end_ids: Collection[int]) -> SampleRow:
    return SampleRow(
        params=sequence.params,
        seed=sequence.seed,
        position=sequence.num_tokens,
        token_ids=sequence.token_ids,
        num_prompt=sequence.num_prompt,
        end_ids=end_ids,
    )
