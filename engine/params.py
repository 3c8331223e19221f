"""SamplingParams: how the tokens of a reply are chosen; what a request may be made of."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import RequestError, SamplingError, shown

MOST_LOGPROBS = 20  # alternatives per token


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. Checked on construction. The defaults choose greedily.

    The logits are changed in this order: logit_bias, repetition, frequency and presence penalty,
    min_tokens; what is left goes through temperature, top_k, top_p and min_p.

    Raises:
        SamplingError: a value is out of range or of the wrong type.
    """

    temperature: float = 0.0  # below 1e-5 means greedy
    top_k: int = 0  # 0 = off
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None  # None = the engine draws one
    max_tokens: int | None = None  # None = until the context ends
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    repetition_penalty: float = 1.0  # over prompt and output: logits > 0 divided, others times it
    presence_penalty: float = 0.0  # subtracted once from every token of the output
    frequency_penalty: float = 0.0  # subtracted once per time that a token is in the output
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what is added to its logit)
    min_tokens: int = 0  # no end token and no end of a stop string among this many first tokens
    logprobs: int | None = None  # alternatives to report per token, 0 = only the chosen one

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, 100.0)
        _check("top_p", self.top_p, 0.0, 1.0)
        _check("min_p", self.min_p, 0.0, 1.0)
        _check_int("top_k", self.top_k, 0, 2**31 - 1)
        if self.seed is not None:
            _check_int("seed", self.seed, 0, 2**63 - 1)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _check("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        _check("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        # Not more than max_tokens, or the two would ask for opposite things.
        _check_int("min_tokens", self.min_tokens, 0, self.max_tokens or 2**31 - 1)
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, MOST_LOGPROBS)
        if not isinstance(self.ignore_eos, bool):
            raise SamplingError(
                f"ignore_eos is {shown(self.ignore_eos)}, allowed are true and false"
            )
        _check_stop(self.stop)
        _check_bias(self.logit_bias)


def _check(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise SamplingError(f"{name} is {shown(value)}, allowed {low:g} to {high:g}")


def _check_int(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise SamplingError(f"{name} is {shown(value)}, allowed are whole numbers {low} to {high}")


def _check_stop(stop: object) -> None:
    # One text alone would pass for a tuple of its letters.
    if not isinstance(stop, tuple) or not all(isinstance(text, str) and text for text in stop):
        raise SamplingError("stop strings must be a tuple of texts that are not empty")


def _check_bias(pairs: object) -> None:
    if not isinstance(pairs, tuple) or not all(
        isinstance(pair, tuple) and len(pair) == 2 for pair in pairs
    ):
        raise SamplingError("logit_bias must be a tuple of pairs of token id and number")
    for token_id, bias in pairs:
        _check_int("a token id in logit_bias", token_id, 0, 2**31 - 1)
        _check(f"logit_bias of token {token_id}", bias, -100.0, 100.0)
    if len({token_id for token_id, _ in pairs}) < len(pairs):
        raise SamplingError("logit_bias names a token twice; give one number for each")


def check_owner(owner: object) -> None:
    """An owner's number colours blocks: two bytes, of which the last value means nobody.

    Raises:
        RequestError: it is something else.
    """
    if type(owner) is not int or not 0 <= owner < 0xFFFF:
        raise RequestError(f"owner is {shown(owner)}, allowed are whole numbers 0 to 65534")


def check_submit(owner: object, messages: object, prompt: object, kind: type) -> None:
    """What a Submit is made of; `kind` is that of its messages.

    Raises:
        RequestError: it is not exactly one of messages and prompt, or of the wrong type.
    """
    check_owner(owner)
    if not isinstance(messages, tuple) or not all(isinstance(one, kind) for one in messages):
        raise RequestError("messages must be a tuple of chat messages")
    for message in messages:
        role, content = getattr(message, "role", None), getattr(message, "content", None)
        if not isinstance(role, str) or not isinstance(content, str):
            raise RequestError("role and content of a message must be texts")
    if prompt is not None and not isinstance(prompt, str):
        raise RequestError("a prompt must be a text")
    if bool(messages) == (prompt is not None):
        raise RequestError("give either messages or a prompt, one of the two")
