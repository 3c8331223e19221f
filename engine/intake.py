"""Intake: how a command becomes a reply in line: its prompt rendered, tokenised and checked."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.errors import EmptyPromptError, RequestError, TemplateError
from engine.messages import Fork, SamplingParams, Submit
from engine.reply import Reply
from engine.sampling import check_bias
from engine.sequence import Sequence
from engine.serving import Serving
from engine.template_worker import PLAIN_STOP, RenderResult, TemplateWorker
from engine.text import Text


@dataclass(frozen=True, slots=True)
class Tokenised:
    """Internal command: a prompt became tokens (or an error), on the template worker's thread."""

    submit: Submit
    token_ids: tuple[int, ...]
    error: str = ""
    notes: tuple[str, ...] = ()  # what was changed to make a strict template accept the messages
    stop: tuple[str, ...] = ()  # stop strings that the prompt's form adds
    message_starts: tuple[int, ...] = ()  # where each message's text begins, -1 where it does not


class Intake:
    """Requests whose prompt is not tokenised yet.

    Args:
        post: takes a `Tokenised`; may be called from another thread.
    """

    def __init__(self, config: EngineConfig, post: Callable[[Tokenised], None]) -> None:
        self._config = config
        self._post = post
        self._worker = TemplateWorker()
        self._worker_started = False
        self._submitted_s: dict[int, float] = {}  # request -> when

    def start_worker(self) -> None:
        """Start the template worker, once; a model is there, so prompts will come."""
        if not self._worker_started:
            self._worker.start()
            self._worker_started = True

    def close(self) -> None:
        self._worker.close()

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._submitted_s

    @property
    def request_ids(self) -> list[int]:
        return list(self._submitted_s)

    def drop(self, request_id: int) -> bool:
        """Forget a request; True when it was here."""
        return self._submitted_s.pop(request_id, None) is not None

    def add(self, submit: Submit, text: Text) -> None:
        """Turn the messages into tokens and post them; a template is rendered on the worker."""
        now_s = time.monotonic()
        for request_id in (submit.request_id, *submit.siblings):
            self._submitted_s[request_id] = now_s
        if submit.prompt is not None:
            self._post(_raw(submit, text))
            return

        def done(_: int, result: RenderResult) -> None:
            # On the worker's reader thread: a pasted megabyte is tokenised beside the steps.
            self._post(_rendered(submit, text, result))

        self._worker.render(
            submit.request_id,
            text.template,
            submit.messages,
            text.variables,
            done,
            special=tuple(text.special_tokens),
        )

    def take(self, ready: Tokenised, serving: Serving) -> list[Reply]:
        """The replies to a tokenised prompt, those that were not cancelled meanwhile. The first
        reads it, its siblings fork from it.

        Raises:
            RequestError: it cannot be answered; the sentence says why. Nothing is forgotten.
        """
        submit, num_prompt = ready.submit, len(ready.token_ids)
        limit = self._check(ready, serving)
        replies: list[Reply] = []
        for number, request_id in enumerate((submit.request_id, *submit.siblings)):
            submitted_s = self._submitted_s.pop(request_id, None)
            if submitted_s is None:
                continue
            sequence = Sequence(
                request_id=request_id,
                token_ids=list(ready.token_ids),
                num_prompt=num_prompt,
                limit_tokens=limit,
                params=submit.params,
                owner=submit.owner,
                seed=_seed(submit.params, number),
                use_prefix_cache=self._config.prefix_cache and submit.use_prefix_cache,
                priority=submit.priority,
                parent=replies[0].sequence if replies else None,
                fork_tokens=num_prompt - 1 if replies else 0,
            )
            stream = serving.text.stream((*submit.params.stop, *ready.stop))
            replies.append(Reply(sequence, stream, submitted_s, ready.message_starts, ready.notes))
        return replies

    def _check(self, ready: Tokenised, serving: Serving) -> int:
        """Most tokens that a reply to this prompt can reach."""
        if ready.error:
            raise TemplateError(ready.error)
        if not ready.token_ids:
            raise EmptyPromptError("The prompt is empty; write something first")
        if max(ready.token_ids) >= serving.model.vocab_size:  # there are folders like that
            raise RequestError(
                "The prompt holds a token that this model's weights do not know; leave special "
                "tokens out, or choose another copy of the model"
            )
        check_bias(ready.submit.params, serving.model.vocab_size)
        return serving.check_length(len(ready.token_ids), ready.submit.params)


def _raw(submit: Submit, text: Text) -> Tokenised:
    try:
        return Tokenised(submit, tuple(text.encode_raw(submit.prompt or "")))
    except RequestError as error:
        return Tokenised(submit, (), str(error))


def _rendered(submit: Submit, text: Text, result: RenderResult) -> Tokenised:
    if result.error:
        return Tokenised(submit, (), result.error)
    try:
        ids, starts = text.encode_messages(result.text, result.guard, result.starts)
    except RequestError as error:
        return Tokenised(submit, (), str(error))
    stop = () if text.template else PLAIN_STOP
    return Tokenised(
        submit, tuple(ids), notes=result.repaired, stop=stop, message_starts=tuple(starts)
    )


def fork(command: Fork, parent: Sequence, serving: Serving) -> Reply:
    """A reply that goes its own way from what a live one has written so far.

    Raises:
        RequestError: there is no room for another token, or the parameters do not fit the model.
    """
    token_ids = list(parent.token_ids)
    check_bias(command.params, serving.model.vocab_size)
    child = Sequence(
        request_id=command.request_id,
        token_ids=token_ids,
        num_prompt=len(token_ids),
        limit_tokens=serving.check_length(len(token_ids), command.params),
        params=command.params,
        owner=command.owner,
        seed=_seed(command.params, 0),
        use_prefix_cache=parent.use_prefix_cache,
        priority=command.priority,
        parent=parent,
        fork_tokens=len(token_ids) - 1,
    )
    return Reply(child, serving.text.stream(command.params.stop), time.monotonic())


def _seed(params: SamplingParams, number: int) -> int:
    """A reply's seed; `number` counts the replies to one prompt."""
    return secrets.randbits(63) if params.seed is None else (params.seed + number) % (1 << 63)
