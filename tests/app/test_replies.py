"""Replies: priorities, states in words, what is known of a finished one, and pins."""

from __future__ import annotations

import time

import numpy as np

from app.state.session import ReplyDetails
from engine.messages import (
    FRONT,
    NO_OWNER,
    NORMAL,
    Divergence,
    EngineStopped,
    Failed,
    Finished,
    Pin,
    PoolSnapshot,
    PrefixFound,
    ReleaseOwner,
    RequestState,
    SetPriority,
    StateChanged,
    TextDelta,
    Unpin,
    Usage,
)

USAGE = Usage(69, 68, 3, 12.5, 30.0, 0, 1, 1024, waste_ratio=0.031)


def empty_pool() -> PoolSnapshot:
    owners = np.full(4, NO_OWNER, np.uint16).tobytes()
    return PoolSnapshot(4, 16, 1024, bytes(4), owners, bytes(4), 0, 0.0)


# --- priorities -----------------------------------------------------------------------------------


def test_the_tab_in_front_goes_first_and_only_changes_are_told(core, run):
    async def story():
        await core.open()
        one, first = await core.ask("One")
        two, second = await core.ask("Two")  # its tab comes to the front
        assert (first.priority, second.priority) == (FRONT, FRONT)
        assert core.client.of(SetPriority) == [SetPriority(first.request_id, NORMAL)]
        core.intents.open_chat.emit(two.session_id)  # it is there already
        assert len(core.client.of(SetPriority)) == 1
        core.intents.open_chat.emit(one.session_id)
        assert core.client.of(SetPriority)[1:] == [
            SetPriority(first.request_id, FRONT),
            SetPriority(second.request_id, NORMAL),
        ]
        await core.answer(first, "1")
        core.intents.open_chat.emit(two.session_id)
        assert core.client.of(SetPriority)[3:] == [SetPriority(second.request_id, FRONT)]
        await core.answer(second, "2")
        core.intents.open_chat.emit(one.session_id)  # nobody writes any more
        assert len(core.client.of(SetPriority)) == 4
        await core.close()

    run(story())


def test_chats_behind_the_front_ask_with_normal_priority(core, run):
    async def story():
        await core.open()
        core.intents.send_all.emit(["One", "Two", "Three"])
        await core.until(lambda: len(core.client.submits) == 3)
        assert [submit.priority for submit in core.client.submits] == [FRONT, NORMAL, NORMAL]
        assert core.client.of(SetPriority) == []
        core.intents.close_tab.emit(core.sessions.current_id)  # its reply goes on, behind
        changed = core.client.of(SetPriority)
        ids = [submit.request_id for submit in core.client.submits]
        assert sorted((one.request_id, one.priority) for one in changed) == [
            (ids[0], NORMAL), (ids[1], FRONT),
        ]  # fmt: skip
        await core.close()

    run(story())


def test_a_reply_that_waited_for_the_model_takes_the_priority_of_then(core, run):
    async def story():
        await core.open(with_model=False)
        core.models.load("/models/a.gguf")
        one, two = core.chats.new_chat(), core.chats.new_chat()
        core.intents.send.emit(one.session_id, "One")
        core.intents.send.emit(two.session_id, "Two")
        await core.settle()
        core.intents.open_chat.emit(one.session_id)
        assert core.client.of(SetPriority) == []
        core.say_loaded("/models/a.gguf")
        await core.until(lambda: len(core.client.submits) == 2)
        assert [submit.priority for submit in core.client.submits] == [FRONT, NORMAL]
        await core.close()

    run(story())


def test_switching_tabs_after_the_engine_stopped_is_quiet(core, run):
    async def story():
        await core.open()
        one, _ = await core.ask("One")
        core.client.ended = True  # and its last word is on the way
        core.chats.new_chat()
        core.client.say(EngineStopped("out of memory"))
        await core.settle()
        core.intents.open_chat.emit(one.session_id)
        await core.close()

    run(story())


# --- states ---------------------------------------------------------------------------------------


def test_states_are_short_in_the_list_and_whole_below_the_reply(core, run):
    async def story():
        await core.open()
        session, submit = await core.ask("One")
        number = submit.request_id

        async def said(*events) -> tuple[str, str, str]:
            core.client.say(*events)
            await core.settle()
            return session.status, session.status_text, session.status_sentence()

        waiting = StateChanged(number, RequestState.WAITING, place=3)
        assert await said(waiting) == ("waiting", "3rd in line", "Waiting, 3rd in line")
        reading = StateChanged(number, RequestState.READING, done_tokens=10, total_tokens=40)
        words = "Reading the prompt: 10 of 40 tokens"
        assert await said(reading) == ("reading", "Reading 25 %", words)
        running = StateChanged(number, RequestState.RUNNING)
        assert await said(TextDelta(number, "Ada", (1,)), running) == ("running", "", "")
        since_s = time.monotonic() - 12.5
        paused = StateChanged(number, RequestState.PAUSED, 1, 0, 0, "The pool is full.", since_s)
        assert (await said(paused))[2].startswith("Paused 12 s: the pool is full.")
        assert session.status_sentence(since_s + 75) == "Paused 1 min 15 s: the pool is full."
        words = "Reading the chat again: 10 of 40 tokens"
        assert (await said(reading))[2] == words
        assert session.paused_s == 0.0
        await core.answer(submit, "")
        assert session.status_sentence() == ""
        await core.close()

    run(story())


# --- what is known of a finished reply ------------------------------------------------------------


def test_reuse_and_waste_are_kept_beside_the_reply_and_stay_out_of_its_record(core, run):
    async def story():
        await core.open()
        session = core.chats.new_chat()
        core.intents.set_system_prompt.emit(session.session_id, "Today is Tuesday.")
        _, submit = await core.ask("One", session)
        number = submit.request_id
        first = PrefixFound(number, 68, 69, Divergence(4, 9, " Tuesday", 0))
        core.client.say(first, TextDelta(number, "Ada", (1, 2)))
        core.client.say(Finished(number, "stop", USAGE))
        await core.settle()
        reply = session.record.turns[0].reply
        assert session.details == {
            reply.reply_id: ReplyDetails(
                68, "first difference: “Tuesday” in message 1 (system)", 0.031
            )
        }
        assert not hasattr(reply, "waste_ratio")  # a record is stored and exported whole
        assert (reply.prompt_tokens, reply.cached_tokens) == (69, 68)
        await core.close()

    run(story())


def test_a_reply_that_failed_early_has_no_details_but_an_entry(core, run):
    async def story():
        await core.open()
        session, submit = await core.ask("One")
        core.client.say(Failed(submit.request_id, "The prompt is too long."))
        core.client.say(PrefixFound(submit.request_id, 1, 2))  # of a request that has ended
        await core.settle()
        assert list(session.details.values()) == [ReplyDetails()]
        await core.close()

    run(story())


# --- pins -----------------------------------------------------------------------------------------


def test_a_pin_is_sent_once_with_the_chats_number_and_taken_back(core, run):
    async def story():
        await core.open()
        await core.answer((await core.ask("Zero"))[1], "0")
        session, submit = await core.ask("One")
        core.intents.set_pinned.emit(session.session_id, True)
        core.intents.set_pinned.emit(session.session_id, True)
        assert session.is_pinned
        assert core.client.of(Pin) == [Pin(submit.owner)]
        await core.answer(submit, "1")
        core.intents.set_pinned.emit(session.session_id, False)
        assert core.client.of(Unpin) == [Unpin(submit.owner)]
        assert not session.is_pinned
        await core.close()

    run(story())


def test_a_pinned_chat_keeps_its_number_when_its_blocks_are_gone(core, run):
    """Else the next chat would take the number, and be pinned in its place."""

    async def story():
        await core.open()
        session, submit = await core.ask("One")
        await core.answer(submit, "1")
        core.intents.set_pinned.emit(session.session_id, True)
        core.client.say(pool=empty_pool())
        await core.settle()
        _, other = await core.ask("Two")
        assert other.owner != submit.owner
        core.intents.set_pinned.emit(session.session_id, False)
        assert core.client.of(Unpin) == [Unpin(submit.owner)]
        core.client.say(pool=empty_pool())
        await core.settle()
        _, third = await core.ask("Three")
        assert third.owner == submit.owner
        await core.close()

    run(story())


def test_pins_are_sent_again_to_every_new_pool(core, run):
    async def story():
        await core.open(with_model=False)
        one, two = core.chats.new_chat(), core.chats.new_chat()
        core.intents.set_pinned.emit(two.session_id, True)  # no model yet: nobody to tell
        assert core.client.of(Pin) == []
        await core.load()
        assert core.client.of(Pin) == [Pin(0)]
        _, submit = await core.ask("One", one)
        assert submit.owner == 1
        await core.answer(submit, "1")
        await core.load("/models/b.gguf")
        assert core.client.of(Pin) == [Pin(0)] * 2
        core.client.say(EngineStopped("out of memory"))
        await core.settle()
        core.intents.restart_engine.emit()
        core.say_loaded("/models/b.gguf")
        await core.until(lambda: core.status.phase == "ready")
        assert len(core.clients) == 2
        assert core.client.of(Pin) == [Pin(0)]
        await core.close()

    run(story())


def test_a_deleted_chat_is_unpinned_and_undo_pins_it_again(core, run):
    async def story():
        await core.open()
        session, submit = await core.ask("One")
        core.intents.set_pinned.emit(session.session_id, True)
        core.intents.delete.emit(session.session_id)  # in the middle of its answer
        assert core.client.of(Unpin) == [Unpin(submit.owner)]
        await core.answer(submit, "", "cancelled")
        assert core.client.of(ReleaseOwner) == [ReleaseOwner(submit.owner)]
        await core.load("/models/b.gguf")
        assert len(core.client.of(Pin)) == 1  # it is forgotten
        core.intents.undo_delete.emit()
        assert session.is_pinned
        assert len(core.client.of(Pin)) == 2
        await core.close()

    run(story())


def test_an_empty_chat_that_vanishes_leaves_no_pin(core, run):
    async def story():
        await core.open()
        session = core.chats.new_chat()
        core.intents.set_pinned.emit(session.session_id, True)
        core.intents.close_tab.emit(session.session_id)
        assert core.sessions.all == []
        assert core.client.of(Unpin) == [Unpin(0)]
        await core.load("/models/b.gguf")
        assert len(core.client.of(Pin)) == 1
        await core.close()

    run(story())


def test_a_pin_without_an_engine_waits_for_one(core, run):
    async def story():
        await core.open()
        session, submit = await core.ask("One")
        await core.answer(submit, "1")
        core.client.say(EngineStopped("out of memory"))
        await core.settle()
        core.intents.set_pinned.emit(session.session_id, True)
        core.intents.set_pinned.emit(session.session_id, False)
        core.intents.set_pinned.emit(session.session_id, True)
        assert session.is_pinned
        core.intents.restart_engine.emit()
        core.say_loaded("/models/a.gguf")
        await core.until(lambda: core.client.of(Pin))
        assert core.client.of(Pin) == [Pin(0)]
        await core.close()

    run(story())


def test_the_title_of_a_kept_chat_can_change(core, run):
    """A record that is replaced keeps what only lives for this run."""

    async def story():
        await core.open()
        session, submit = await core.ask("One")
        await core.answer(submit, "1")
        core.intents.set_pinned.emit(session.session_id, True)
        core.intents.rename.emit(session.session_id, "Kept")
        assert (session.title, session.is_pinned) == ("Kept", True)
        await core.close()

    run(story())
