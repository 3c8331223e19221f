"""The whole engine on the starter model: what requests share, and who goes first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch

from engine.config import EngineConfig
from engine.core import Engine
from engine.errors import RequestError
from engine.headless import Headless, Outcome
from engine.messages import (
    FRONT,
    NORMAL,
    ChatMessage,
    Event,
    Failed,
    Finished,
    Fork,
    LoadModel,
    Notice,
    Pin,
    PrefixFound,
    RequestState,
    SamplingParams,
    SetPriority,
    StateChanged,
    StepEvents,
    Submit,
    TextDelta,
    Unpin,
)

SYSTEM = "You are a patient teacher who answers in one short sentence and never says hello first."


class Driver:
    """An engine whose steps a test makes one by one, in the test's own thread."""

    def __init__(self, model: Path, **config: object) -> None:
        self.inbox: SimpleQueue[object] = SimpleQueue()
        self.events: list[Event] = []
        self.steps: list[StepEvents] = []
        values = {"precision": "exact", "chunk_tokens": 64, **config}
        self.engine = Engine(EngineConfig(**values), self.inbox.put, self._take)  # type: ignore[arg-type]
        self.engine.handle(LoadModel(str(model)))
        self._next = 1

    def _take(self, step: StepEvents) -> None:
        self.events += step.events
        self.steps.append(step)

    def ask(self, *texts: str, **more: object) -> int:
        """A chat of these texts in turns, user first, behind a system prompt if one is given."""
        params = SamplingParams(max_tokens=more.pop("max_tokens", 8), ignore_eos=True)  # type: ignore[arg-type]
        messages = [ChatMessage("system", more.pop("system"))] if "system" in more else []  # type: ignore[arg-type]
        roles = ("user", "assistant")
        messages += [ChatMessage(roles[i % 2], text) for i, text in enumerate(texts)]
        number, self._next = self._next, self._next + 1 + len(more.get("siblings", ()))  # type: ignore[arg-type]
        self.engine.handle(Submit(number, params, tuple(messages), **more))  # type: ignore[arg-type]
        self.engine.handle(self.inbox.get(timeout=30))  # type: ignore[arg-type]
        return number

    def step(self) -> None:
        self.engine.step()
        self.engine.flush()

    def until(self, is_there: Callable[[], object]) -> None:
        for _ in range(400):
            if is_there():
                return
            self.step()
        raise AssertionError("it never came")

    def finish(self) -> None:
        self.until(lambda: self.engine.is_idle)

    def of(self, kind: type, request_id: int) -> list:
        return [e for e in self.events if isinstance(e, kind) and e.request_id == request_id]

    def tokens(self, request_id: int) -> list[int]:
        return [t for delta in self.of(TextDelta, request_id) for t in delta.token_ids]


@pytest.fixture(scope="module")
def shared_driver(starter_model: Path) -> Iterator[Driver]:
    driver = Driver(starter_model, num_blocks=64)
    yield driver
    driver.engine.close()


@pytest.fixture
def driver(shared_driver: Driver) -> Driver:
    """The one engine, its cache empty."""
    shared_driver.engine._serving.pool.drop_cached()
    return shared_driver


# --- forks --------------------------------------------------------------------------------------


def test_several_replies_to_one_prompt_read_it_once(driver: Driver) -> None:
    alone = driver.ask("Why is the sky blue?", use_prefix_cache=False)
    driver.finish()
    copies = driver.steps[-1].pool.num_copies
    first = driver.ask("Why is the sky blue?", siblings=(90, 91), use_prefix_cache=False)
    driver.finish()
    ids = (first, 90, 91)
    assert [driver.tokens(i) for i in ids] == [driver.tokens(alone)] * 3
    prompt_tokens = driver.of(Finished, first)[0].usage.prompt_tokens
    cached = [driver.of(Finished, i)[0].usage.cached_tokens for i in ids]
    assert cached == [0, prompt_tokens - 1, prompt_tokens - 1]
    assert prompt_tokens % 16 != 1, "there is a part-filled block to copy"
    assert driver.steps[-1].pool.num_copies == copies + 2


def test_replies_to_one_prompt_differ_by_their_seeds(starter_model: Path) -> None:
    params = SamplingParams(temperature=1.0, seed=7, max_tokens=12, ignore_eos=True)
    chat = (ChatMessage("user", "Name an animal."),)
    config = EngineConfig(precision="exact", num_blocks=64)
    with Headless(config, starter_model) as engine:
        both: list[Outcome] = engine.run([Submit(1, params, chat, siblings=(2,))]).outcomes
        next_seed = SamplingParams(temperature=1.0, seed=8, max_tokens=12, ignore_eos=True)
        second = engine.run([Submit(3, next_seed, chat)]).outcomes[0]
    assert both[0].token_ids != both[1].token_ids
    assert both[1].token_ids == second.token_ids


def test_a_reply_branches_while_it_is_written(driver: Driver) -> None:
    whole = driver.ask("Tell me about rivers.", max_tokens=24, owner=1)
    driver.until(lambda: len(driver.tokens(whole)) == 9)
    greedy = SamplingParams(max_tokens=15, ignore_eos=True)
    driver.engine.handle(Fork(92, whole, greedy, owner=2))
    driver.step()
    shared = driver.engine._serving.pool.num_shared
    assert shared > 0
    driver.finish()
    assert driver.tokens(92) == driver.tokens(whole)[9:]
    assert driver.of(Finished, 92)[0].reason == "length"


def test_a_reply_that_has_ended_cannot_be_branched(driver: Driver) -> None:
    driver.engine.handle(Fork(93, 1))
    driver.engine.flush()
    assert "has ended" in driver.of(Failed, 93)[0].message


def test_cancelling_the_first_leaves_its_siblings(driver: Driver) -> None:
    from engine.messages import Cancel

    first = driver.ask("What is a prime number?", siblings=(95,))
    driver.step()
    driver.engine.handle(Cancel(first))
    driver.finish()
    assert driver.of(Finished, first)[0].reason == "cancelled"
    assert len(driver.tokens(95)) == 8


# --- what the prefix cache says -----------------------------------------------------------------


def test_the_first_token_that_differs_is_named_with_its_message(driver: Driver) -> None:
    driver.ask("Today is Monday. What should I cook?", system=SYSTEM)
    driver.finish()
    changed = driver.ask("Today is Friday. What should I cook?", system=SYSTEM)
    driver.finish()
    found: PrefixFound = driver.of(PrefixFound, changed)[0]
    assert found.divergence is not None
    assert found.divergence.text.strip() == "Friday"
    assert found.divergence.message == 1
    assert found.matched_tokens == found.divergence.index
    other = driver.ask(
        "Today is Friday. What should I cook?", system=SYSTEM.replace("short", "odd")
    )
    driver.finish()
    ends = driver.of(PrefixFound, other)[0].divergence
    assert (ends.text.strip(), ends.message) == ("odd", 0)


def test_a_first_request_and_a_next_turn_have_no_difference(driver: Driver) -> None:
    question = "Name a fruit that grows on trees in the north, please."
    first = driver.ask(question, system=SYSTEM)
    driver.finish()
    assert driver.of(PrefixFound, first)[0].matched_tokens == 0
    assert driver.of(PrefixFound, first)[0].divergence is None
    reply = "".join(delta.text for delta in driver.of(TextDelta, first))
    turn = driver.ask(question, reply, "And another one?", system=SYSTEM)
    driver.finish()
    found = driver.of(PrefixFound, turn)[0]
    assert found.matched_tokens > driver.of(PrefixFound, first)[0].prompt_tokens - 16
    assert len(driver.of(PrefixFound, turn)) == 1


def test_regenerate_and_edit_start_from_what_both_have_in_common(driver: Driver) -> None:
    first = driver.ask("Describe the moon to a child.", max_tokens=20, owner=3)
    driver.finish()
    again = driver.ask("Describe the moon to a child.", max_tokens=20, owner=3)
    driver.finish()
    assert driver.tokens(again) == driver.tokens(first)
    found = driver.of(PrefixFound, again)[0]
    assert found.matched_tokens == found.prompt_tokens - 1
    assert found.divergence is None


# --- pins ---------------------------------------------------------------------------------------


def crowd(driver: Driver) -> None:
    """Fill the pool with others' chats, so that what is not pinned is evicted."""
    for number in range(12):
        driver.ask(f"Chat number {number}: " + "more words to read " * 20, owner=50 + number)
        driver.finish()


@pytest.mark.parametrize("is_pinned", [True, False])
def test_a_pinned_session_is_still_there_after_a_crowd(driver: Driver, is_pinned: bool) -> None:
    question = "Explain in one sentence what a cache is good for in a computer."
    driver.ask(question, owner=7, system=SYSTEM)
    driver.finish()
    if is_pinned:
        driver.engine.handle(Pin(7))
        driver.engine.flush()
        assert driver.steps[-1].pool.num_pinned > 0
    crowd(driver)
    again = driver.ask(question, owner=7, system=SYSTEM)
    driver.finish()
    found = driver.of(PrefixFound, again)[0]
    if is_pinned:
        assert found.matched_tokens == found.prompt_tokens - 1
    else:
        assert found.matched_tokens < 16, "at most the start of a block that others left"
    driver.engine.handle(Unpin(7))
    driver.engine.flush()
    assert driver.steps[-1].pool.num_pinned == 0


def test_a_pinned_system_prompt_keeps_only_its_own_blocks(driver: Driver) -> None:
    driver.engine.handle(Pin(8, num_messages=1))
    driver.ask("A question " + "with many words " * 20, owner=8, system=SYSTEM * 3)
    driver.finish()
    crowd(driver)
    again = driver.ask("Something else entirely?", owner=9, system=SYSTEM * 3)
    driver.finish()
    found = driver.of(PrefixFound, again)[0]
    driver.engine.handle(Unpin(8))
    assert 32 <= found.matched_tokens <= found.prompt_tokens - 8


# --- who goes first, and trouble ------------------------------------------------------------------


def test_the_tab_in_front_is_let_in_before_the_others(starter_model: Path) -> None:
    driver = Driver(starter_model, num_blocks=16)
    long = "Write a story. " + "It rains and it rains. " * 18
    behind = [driver.ask(long, max_tokens=60, priority=NORMAL, owner=i) for i in range(2)]
    driver.until(lambda: len(driver.tokens(behind[0])) > 2)
    waiting = [driver.ask(f"{n} {long}", max_tokens=20, owner=3 + n) for n in range(2)]
    driver.engine.handle(SetPriority(waiting[1], FRONT))
    driver.finish()
    ends = [e.request_id for e in driver.events if isinstance(e, Finished)]
    assert ends[0] == waiting[1]
    states = [s for s in driver.of(StateChanged, behind[0]) if s.state is RequestState.PAUSED]
    assert states, "who gave way says so"
    assert all(s.since_s > 0 for s in states)
    assert len({s.since_s for s in states}) <= 2
    assert all(driver.of(Finished, i)[0].reason == "length" for i in behind + waiting)
    driver.engine.close()


def test_without_memory_for_a_step_less_is_tried_and_it_is_said(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = driver.ask("What is the capital of France? " * 6, use_prefix_cache=False)
    driver.finish()
    model = driver.engine._serving.model
    forward, sizes = type(model).forward, []

    def forward_in_little_memory(self, batch, cache):
        sizes.append(batch.num_tokens)
        if batch.num_tokens > 9:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to")
        return forward(self, batch, cache)

    monkeypatch.setattr(type(model), "forward", forward_in_little_memory)
    both = [driver.ask("What is the capital of France? " * 6, use_prefix_cache=False)]
    both.append(driver.ask("What is the capital of France? " * 6, use_prefix_cache=False))
    driver.finish()
    assert [driver.tokens(i) for i in both] == [driver.tokens(right)] * 2
    assert max(sizes) > 9 >= sizes[-1]
    notices = [e.message for e in driver.events if isinstance(e, Notice)]
    assert len(notices) == 1
    assert "smaller pieces" in notices[0]


def test_memory_for_not_even_one_token_ends_that_request_only(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self, batch, cache):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(type(driver.engine._serving.model), "forward", forward)
        lost = driver.ask("Hello there.")
        driver.finish()
    assert "not enough memory" in driver.of(Failed, lost)[0].message
    fine = driver.ask("Hello there.")
    driver.finish()
    assert len(driver.tokens(fine)) == 8


def test_another_error_in_a_step_is_not_taken_for_memory(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self, batch, cache):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(type(driver.engine._serving.model), "forward", forward)
    number = driver.ask("Hello there.")
    with pytest.raises(RuntimeError, match="shapes"):
        driver.step()
    monkeypatch.undo()
    driver.finish()
    assert len(driver.tokens(number)) == 8, "the plan of a step that failed is no harm"


def test_a_reply_whose_text_cannot_be_made_ends_alone(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = driver.ask("Say one."), driver.ask("Say two.")
    take = type(driver.engine._replies[bad]).take

    def take_badly(self, token_id, now_s, eos_ids):
        if self.request_id == bad:
            raise ValueError("letters")
        return take(self, token_id, now_s, eos_ids)

    monkeypatch.setattr(type(driver.engine._replies[bad]), "take", take_badly)
    driver.finish()
    assert "letters" in driver.of(Failed, bad)[0].message
    assert driver.of(Finished, good)[0].reason == "length"


def test_a_number_in_use_harms_nobody(driver: Driver) -> None:
    number = driver.ask("Say three.")
    chat = (ChatMessage("user", "Say four."),)
    driver.engine.handle(Submit(number, SamplingParams(), chat))
    driver.engine.handle(Submit(200, SamplingParams(), chat, siblings=(200,)))
    driver.engine.handle(Fork(number, number))
    driver.finish()
    assert len(driver.tokens(number)) == 8
    assert sum("is in use" in e.message for e in driver.events if isinstance(e, Notice)) == 3


@pytest.mark.parametrize(
    "bad",
    [
        {"owner": -1},
        {"owner": 65535},
        {"owner": True},
        {"messages": (ChatMessage("user", 5),)},  # type: ignore[arg-type]
        {"messages": (ChatMessage(None, "x"),)},  # type: ignore[arg-type]
        {"messages": [ChatMessage("user", "x")]},
        {"messages": ({"role": "user", "content": "x"},)},
        {"messages": (), "prompt": b"x"},
        {"messages": ()},
        {"prompt": "both"},
    ],
)
def test_what_a_request_is_made_of_is_checked_where_it_is_made(bad: dict) -> None:
    values = {"messages": (ChatMessage("user", "x"),), **bad}
    with pytest.raises(RequestError):
        Submit(1, **values)
