"""Everything that crosses the engine's thread: commands down, events up. All frozen.

Counts are `num_x`, times end in `_ms` or `_s`, sizes in `_bytes` or `_tokens`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Literal

from engine.errors import SamplingError, shown

Role = Literal["system", "user", "assistant"]
FinishReason = Literal["stop", "length", "cancelled", "error"]


class BlockState(enum.IntEnum):
    """State of a physical block; the values are the bytes of `PoolSnapshot.states`."""

    FREE = 0  # holds nothing
    CACHED = 1  # no owner, its content can still be reused
    ACTIVE = 2  # one owner
    SHARED = 3  # several owners


class RequestState(enum.Enum):
    """What a request is doing, in words a user can understand."""

    WAITING = "waiting"  # in line for blocks or a place in the batch
    READING = "reading"  # its prompt is being read
    RUNNING = "running"  # tokens are being written
    PAUSED = "paused"  # preempted: its blocks were given to others, it goes on by itself


# --- values ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: Role
    content: str


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


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The natural logarithm of a token's probability in the model's own distribution, before
    bias, penalties, temperature and filters."""

    token_id: int
    logprob: float
    data: bytes = b""  # what it stands for, often part of a character; none for a control token


@dataclass(frozen=True, slots=True)
class Logprobs:
    """One sampled token and what could have stood in its place."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()  # the most likely tokens, best first; impossible ones never


@dataclass(frozen=True, slots=True)
class Usage:
    """What one finished reply took."""

    prompt_tokens: int
    cached_tokens: int  # of the prompt, taken from the prefix cache
    new_tokens: int
    ttft_ms: float  # submission to first token
    decode_tokens_per_s: float  # after the first token; 0 with fewer than two tokens
    preemptions: int
    num_blocks: int  # held when it ended, shared ones included
    kv_bytes: int  # num_blocks * block_bytes


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The loaded model, as window and JSON show it."""

    name: str
    file: str  # path that was loaded
    architecture: str
    context_tokens: int
    num_parameters: int
    device: str  # "cpu", "cuda:0"
    device_name: str  # "CPU, 2 cores"
    backend: str  # "reference", "cpu", "gpu"
    path: Literal["fast", "universal"]
    precision: Literal["exact", "fast"]
    storage: str  # "fp32", "bf16 packed", ...
    weights_bytes: int
    num_blocks: int
    block_tokens: int
    block_bytes: int
    has_chat_template: bool
    version: str


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """Picture of the physical blocks. One entry per block in each byte string.

    `owners` holds uint16 in native order (read it with `memoryview(...).cast("H")` or numpy).
    An owner number is what the app passed in `Submit.owner`; NO_OWNER on a FREE block. A CACHED
    block keeps the number of its last owner, a SHARED one that of its first.
    """

    num_blocks: int
    block_tokens: int
    block_bytes: int
    states: bytes  # BlockState
    owners: bytes  # uint16
    unfilled: bytes  # slots of the block that hold no token yet, 0 = full
    num_saved_by_sharing: int  # sum over SHARED blocks of (owners - 1)
    time_s: float  # time.monotonic()


NO_OWNER = 0xFFFF


@dataclass(frozen=True, slots=True)
class StepStats:
    """One forward pass, and the load it leaves behind."""

    num_prefill_tokens: int
    num_decode_tokens: int
    step_ms: float
    num_running: int  # requests that hold blocks
    num_waiting: int
    waste_ratio: float  # 1 - written_slots / held_slots; 0 when idle
    time_s: float  # time.monotonic() at the end of the step
    written_slots: int = 0  # of the running requests, after the step
    held_slots: int = 0  # a shared block counts once
    num_used_blocks: int = 0  # ACTIVE and SHARED


# --- commands (down) --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Load `path` (a .gguf file or a folder with safetensors) in place of the present model."""

    path: str


@dataclass(frozen=True, slots=True)
class UnloadModel:
    pass


@dataclass(frozen=True, slots=True)
class Submit:
    """One reply is wanted. Exactly one of `messages` (through the chat template) and `prompt`
    (raw text, special tokens not parsed) is given."""

    request_id: int
    params: SamplingParams = field(default_factory=SamplingParams)
    messages: tuple[ChatMessage, ...] = ()
    prompt: str | None = None
    owner: int = 0  # 0 to 65534, colours the blocks
    use_prefix_cache: bool = True


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop a request before the next step. The text so far stays."""

    request_id: int


@dataclass(frozen=True, slots=True)
class ReleaseOwner:
    """Give back what is CACHED for an owner (its chat was deleted)."""

    owner: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    pass


Command = LoadModel | UnloadModel | Submit | Cancel | ReleaseOwner | Shutdown


# --- events (up) ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelLoading:
    path: str
    fraction: float  # 0 to 1
    note: str  # "Reading weights"


@dataclass(frozen=True, slots=True)
class ModelLoaded:
    info: ModelInfo


@dataclass(frozen=True, slots=True)
class ModelFailed:
    """The model could not be loaded. None is loaded now, unless the one before was kept: what is
    wrong with a file is seen before the present model is given up for it."""

    path: str
    message: str  # one sentence
    is_kept: bool = False


@dataclass(frozen=True, slots=True)
class ModelUnloaded:
    pass


@dataclass(frozen=True, slots=True)
class Accepted:
    """The prompt is tokenised and fits; the request is in line."""

    request_id: int
    prompt_tokens: int
    limit_tokens: int  # prompt + reply can reach this many (context or pool, the smaller)
    notes: tuple[str, ...] = ()  # what was changed for a strict chat template, a sentence each


@dataclass(frozen=True, slots=True)
class StateChanged:
    request_id: int
    state: RequestState
    place: int = 0  # WAITING: 1 = next in line
    done_tokens: int = 0  # READING: prompt tokens read (cached ones count)
    total_tokens: int = 0
    reason: str = ""  # PAUSED: why


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that can no longer change. `token_ids` are those sampled since the last delta."""

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[Logprobs, ...] = ()  # one per token id where the request asked for them


@dataclass(frozen=True, slots=True)
class Finished:
    request_id: int
    reason: FinishReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class Failed:
    """This request ended with an error; text already sent stays. `usage` is None before a prompt
    was read."""

    request_id: int
    message: str  # one sentence
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class EngineStopped:
    """Last event of an engine thread. `reason` is empty after a Shutdown, else a sentence."""

    reason: str


Event = (
    ModelLoading
    | ModelLoaded
    | ModelFailed
    | ModelUnloaded
    | Accepted
    | StateChanged
    | TextDelta
    | Finished
    | Failed
    | EngineStopped
)


@dataclass(frozen=True, slots=True)
class StepEvents:
    """All that one step has to say, in order; handed over in one call."""

    events: tuple[Event, ...] = ()
    stats: StepStats | None = None
    pool: PoolSnapshot | None = None
