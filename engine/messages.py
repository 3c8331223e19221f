"""Everything that crosses the engine's thread: commands down, events up. All frozen.

Counts are `num_x`, times end in `_ms` or `_s`, sizes in `_bytes` or `_tokens`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Literal

from engine.params import MOST_LOGPROBS as MOST_LOGPROBS
from engine.params import SamplingParams as SamplingParams
from engine.params import check_owner, check_submit

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


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithm of a token's probability, before bias, penalties, temperature, filters."""

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
    waste_ratio: float = 0.0  # 1 - slots with a token / slots held, summed over its steps


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
    groups: bytes = b""  # layer group of the block; empty where there is only one
    num_groups: int = 1
    num_copies: int = 0  # shared blocks copied before a write, since the model was loaded
    num_pinned: int = 0  # blocks kept from eviction


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
    parts_ms: tuple[float, ...] = ()  # of step_ms and the text after it, as `plan.STEP_PARTS`


# Priorities of requests: the smaller goes first, whoever came first among equals.
FRONT, NORMAL, BACKGROUND = 0, 1, 2


# --- commands (down) --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Load `path` (a .gguf file or a folder with safetensors) in place of the present model."""

    path: str


@dataclass(frozen=True, slots=True)
class CancelLoad:
    """Give up the load under way, and those that wait. Its end is a ModelFailed, or a ModelLoaded
    where it was in memory already."""


@dataclass(frozen=True, slots=True)
class UnloadModel:
    pass


@dataclass(frozen=True, slots=True)
class Submit:
    """One reply is wanted. Exactly one of `messages` (through the chat template) and `prompt`
    (raw text, special tokens not parsed) is given.

    Raises:
        RequestError: it is not so, or a value is of the wrong type or out of range.
    """

    request_id: int
    params: SamplingParams = field(default_factory=SamplingParams)
    messages: tuple[ChatMessage, ...] = ()
    prompt: str | None = None
    owner: int = 0  # 0 to 65534, colours the blocks
    use_prefix_cache: bool = True
    priority: int = NORMAL
    siblings: tuple[int, ...] = ()  # request ids of more replies; their seeds follow the given one

    def __post_init__(self) -> None:
        check_submit(self.owner, self.messages, self.prompt, ChatMessage)


@dataclass(frozen=True, slots=True)
class Fork:
    """A second reply goes its own way from what a live one has written so far. They share the
    blocks of all they have in common."""

    request_id: int
    parent_id: int
    params: SamplingParams = field(default_factory=SamplingParams)
    owner: int = 0
    priority: int = NORMAL

    def __post_init__(self) -> None:
        check_owner(self.owner)


@dataclass(frozen=True, slots=True)
class SetPriority:
    """The request's tab came to the front, or left it."""

    request_id: int
    priority: int


@dataclass(frozen=True, slots=True)
class Pin:
    """Keep what the owner's newest request leaves in the pool, of the first `num_messages`
    messages or of all, from eviction until Unpin. It gives way where nobody could go on
    otherwise. For messages it takes effect with the owner's next request."""

    owner: int
    num_messages: int | None = None


@dataclass(frozen=True, slots=True)
class Unpin:
    owner: int


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


Command = (
    LoadModel
    | CancelLoad
    | UnloadModel
    | Submit
    | Fork
    | SetPriority
    | Cancel
    | Pin
    | Unpin
    | ReleaseOwner
    | Shutdown
)


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
    is_cancelled: bool = False  # asked for with CancelLoad: nothing is wrong


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
    since_s: float = 0.0  # PAUSED: time.monotonic() when it was


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token of a prompt that differs from what is cached."""

    index: int  # in the prompt, from 0
    token_id: int
    text: str  # what the token stands for
    message: int | None = None  # which of the messages it lies in, from 0; None: in none of them


@dataclass(frozen=True, slots=True)
class PrefixFound:
    """The request was first admitted: how much of its prompt need not be computed, and why not
    more. Without a `divergence` all that was cached fits, or the rest is no longer cached."""

    request_id: int
    matched_tokens: int
    prompt_tokens: int
    divergence: Divergence | None = None


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
class Notice:
    """Something that people should know though no request failed."""

    message: str  # one sentence


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
    | PrefixFound
    | TextDelta
    | Finished
    | Failed
    | Notice
    | EngineStopped
)


@dataclass(frozen=True, slots=True)
class StepEvents:
    """All that one step has to say, in order; handed over in one call."""

    events: tuple[Event, ...] = ()
    stats: StepStats | None = None
    pool: PoolSnapshot | None = None
