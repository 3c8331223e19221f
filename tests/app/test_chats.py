"""Chats: what reaches the disk, the engine and the window, and in which order."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest

from app.errors import HistoryError
from app.records import Sampling
from engine.messages import (
    Accepted,
    Cancel,
    ChatMessage,
    Failed,
    ReleaseOwner,
    RequestState,
    StateChanged,
    TextDelta,
)


def texts(submit):
    return [(message.role, message.content) for message in submit.messages]


def test_the_message_is_on_the_disk_before_the_engine_is_asked(core, run):
    async def story():
        await core.open()
        gate: Future[None] = Future()
        core.history._worker.submit(gate.result)  # the disk is slow
        session = core.chats.new_chat()
        core.intents.send.emit(session.session_id, "hello")
        await asyncio.sleep(0.1)
        assert session.is_busy
        assert session.record.turns[0].user_text == "hello"
        assert core.client.submits == []
        gate.set_result(None)
        await core.until(lambda: core.client.submits)
        on_disk = await core.history._call(core.history._file.open)
        assert on_disk.sessions[0].turns[0].user_text == "hello"
        await core.answer(core.client.submits[0], "hi")
        await core.close()

    run(story())


def test_a_conversation_reaches_the_engine_and_the_disk(make_core, run):
    async def story():
        core = make_core()
        await core.open()
        session = core.chats.new_chat()
        core.intents.set_system_prompt.emit(session.session_id, "Be brief")
        core.intents.set_sampling.emit(session.session_id, Sampling(temperature=0.0, max_tokens=9))
        _, first = await core.ask("One?", session)
        assert texts(first) == [("system", "Be brief"), ("user", "One?")]
        assert (first.params.temperature, first.params.max_tokens) == (0.0, 9)
        await core.answer(first, "1")
        _, second = await core.ask("Two?", session)
        assert texts(second)[1:] == [("user", "One?"), ("assistant", "1"), ("user", "Two?")]
        assert second.owner == first.owner
        await core.answer(second, "2", "length")
        reply = session.record.turns[1].reply
        assert (reply.text, reply.state, reply.finish_reason) == ("2", "complete", "length")
        assert (reply.new_tokens, reply.num_blocks, reply.model) == (3, 1, "Fake")
        assert (session.title, session.status) == ("One?", "idle")
        await core.close()
        again = make_core()
        loaded = await again.open()
        assert loaded.sessions[0] == session.record
        assert again.sessions.tabs == [session.session_id]
        await again.close()

    run(story())


def test_streaming_text_is_on_the_disk_within_half_a_second(core, run):
    async def story():
        await core.open()
        session, submit = await core.ask("Go")
        core.client.say(TextDelta(submit.request_id, "one ", (1,)))
        await asyncio.sleep(0.45)
        core.client.say(TextDelta(submit.request_id, "two", (2,)))
        await asyncio.sleep(0.45)
        loaded = await core.history._call(core.history._file.open)  # as after a crash
        assert loaded.sessions[0].turns[0].reply.text == "one two"
        assert loaded.sessions[0].turns[0].reply.state == "unfinished"
        assert session.record.turns[0].reply.text == "one two"
        core.replies.interrupt_all()
        await core.close()

    run(story())


@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_an_empty_message_is_not_sent(core, run, text):
    async def story():
        await core.open()
        session = core.chats.new_chat()
        core.intents.send.emit(session.session_id, text)
        await core.settle()
        assert session.record.turns == ()
        assert core.client.submits == []
        await core.close()

    run(story())


def test_a_message_to_a_busy_chat_is_kept_said_and_sent_later(core, run):
    async def story():
        await core.open()
        session, first = await core.ask("One?")
        core.intents.send.emit(session.session_id, "Two?")
        await core.until(lambda: core.toasts)
        await core.settle()
        assert len(core.client.submits) == 1
        on_disk = await core.history._call(core.history._file.open)
        assert [turn.user_text for turn in on_disk.sessions[0].turns] == ["One?", "Two?"]
        await core.answer(first, "1")
        await core.until(lambda: len(core.client.submits) == 2)
        assert texts(core.client.submits[1])[-2:] == [("assistant", "1"), ("user", "Two?")]
        await core.answer(core.client.submits[1], "2")
        assert [turn.reply.text for turn in session.record.turns] == ["1", "2"]
        await core.close()

    run(story())


def test_what_was_changed_for_a_strict_template_is_said_once_for_each_chat(core, run):
    async def story():
        await core.open()
        note = "The template takes no system prompt; it was put before the first message."
        session, first = await core.ask("One?")
        core.client.say(Accepted(first.request_id, 5, 9, (note,)))
        await core.answer(first, "1")
        _, second = await core.ask("Two?", session)
        core.client.say(Accepted(second.request_id, 5, 9, (note,)))
        await core.answer(second, "2")
        assert core.toasts == [(note, "")]
        _, other = await core.ask("One?")
        core.client.say(Accepted(other.request_id, 5, 9, (note,)))
        await core.answer(other, "1")
        assert core.toasts == [(note, "")] * 2
        await core.close()

    run(story())


def test_three_chats_are_sent_together_after_all_are_on_the_disk(core, run):
    async def story():
        await core.open()
        core.intents.send_all.emit(["a", " ", "b", "c"])
        await core.until(lambda: len(core.client.submits) == 3)
        assert [texts(one)[-1][1] for one in core.client.submits] == ["a", "b", "c"]
        assert [one.owner for one in core.client.submits] == [0, 1, 2]
        assert core.sessions.current.title == "a"
        for one in core.client.submits:
            core.client.say(StateChanged(one.request_id, RequestState.RUNNING))
        await core.until(lambda: core.status.num_generating == 3)
        for one in core.client.submits:
            await core.answer(one, "x")
        assert core.status.num_generating == 0
        await core.close()

    run(story())


def test_stop_keeps_the_text(core, run):
    async def story():
        await core.open()
        session, submit = await core.ask("Go")
        core.client.say(TextDelta(submit.request_id, "half", (1,)))
        core.intents.stop.emit(session.session_id)
        assert core.client.of(Cancel) == [Cancel(submit.request_id)]
        await core.answer(submit, " an answer", "cancelled")
        reply = session.record.turns[0].reply
        assert (reply.text, reply.finish_reason) == ("half an answer", "cancelled")
        await core.close()

    run(story())


def test_regenerate_adds_a_version_with_another_seed(make_core, run):
    async def story():
        core = make_core()
        await core.open()
        session = core.chats.new_chat()
        core.intents.set_sampling.emit(session.session_id, Sampling(seed=42))
        _, first = await core.ask("Go", session)
        await core.answer(first, "one")
        core.intents.regenerate.emit(session.session_id)
        core.intents.regenerate.emit(session.session_id)  # busy: asked once
        await core.until(lambda: len(core.client.submits) == 2)
        second = core.client.submits[1]
        assert second.messages == first.messages
        assert (first.params.seed, second.params.seed) == (42, 43)
        await core.answer(second, "two")
        turn = session.record.turns[0]
        assert [reply.text for reply in turn.replies] == ["one", "two"]
        assert turn.chosen == 1
        core.intents.choose_version.emit(session.session_id, 0, 0)
        core.intents.choose_version.emit(session.session_id, 0, 7)
        core.intents.choose_version.emit(session.session_id, 3, 0)
        await core.close()
        again = make_core()
        loaded = await again.open()
        assert loaded.sessions[0].turns[0].reply.text == "one"
        await again.close()

    run(story())


def test_failed_and_empty_replies_do_not_poison_the_history(core, run):
    async def story():
        await core.open()
        session, submit = await core.ask("x" * 100)
        core.client.say(Failed(submit.request_id, "The prompt is too long."))
        await core.settle()
        assert (session.status, session.status_text) == ("failed", "The prompt is too long.")
        _, submit = await core.ask("My name is Ada.", session)
        await core.answer(submit, "", "cancelled")
        _, submit = await core.ask("Who am I?", session)
        assert submit.messages == (ChatMessage("user", "My name is Ada.\n\nWho am I?"),)
        await core.answer(submit, "Ada")
        await core.close()

    run(story())


def test_delete_gives_the_blocks_back_and_undo_brings_the_chat_back(make_core, run):
    async def story():
        core = make_core()
        await core.open()
        one, submit = await core.ask("One")
        await core.answer(submit, "1")
        two, submit = await core.ask("Two")
        core.client.say(TextDelta(submit.request_id, "part", (1,)))
        await asyncio.sleep(0.05)
        core.intents.delete.emit(one.session_id)
        core.intents.delete.emit(two.session_id)  # in the middle of its answer
        assert core.sessions.all == []
        assert core.client.of(Cancel) == [Cancel(submit.request_id)]
        assert core.client.of(ReleaseOwner) == [ReleaseOwner(0)]
        await core.answer(submit, "", "cancelled")
        assert core.client.of(ReleaseOwner) == [ReleaseOwner(0), ReleaseOwner(1)]
        assert core.toasts[-1][1] == "Undo"
        core.intents.undo_delete.emit()
        assert core.sessions.tabs == [two.session_id]
        assert two.record.turns[0].reply.text == "part"
        await core.close()
        again = make_core()
        loaded = await again.open()
        assert [record.title for record in loaded.sessions] == ["Two"]
        await again.close()

    run(story())


def test_closing_a_tab_goes_on_generating_and_reopen_brings_it_back(core, run):
    async def story():
        await core.open()
        session, submit = await core.ask("Go")
        core.intents.close_tab.emit(session.session_id)
        assert core.client.of(Cancel) == []
        await core.answer(submit, "done")
        assert session.record.turns[0].reply.text == "done"
        assert session.unread
        core.intents.reopen_tab.emit()
        assert core.sessions.tabs == [session.session_id]
        assert not session.unread
        await core.close()

    run(story())


def test_an_untouched_chat_vanishes_when_its_tab_closes(core, run):
    async def story():
        await core.open()
        session = core.chats.new_chat()
        core.intents.close_tab.emit(session.session_id)
        assert core.sessions.all == []
        core.intents.reopen_tab.emit()
        assert core.sessions.tabs == []
        await core.close()

    run(story())


def test_a_disk_that_fails_is_said_once_and_the_chat_is_written_later(make_core, run, monkeypatch):
    async def story():
        core = make_core()
        await core.open()
        writes = ("save_session", "add_turn", "append_text", "put_reply")
        real = {name: getattr(core.history._file, name) for name in writes}

        def full(*args):
            raise HistoryError("The disk is full.")

        for name in writes:
            monkeypatch.setattr(core.history._file, name, full)
        session, submit = await core.ask("Go")  # the engine is asked all the same
        await core.answer(submit, "fine")
        await core.until(lambda: core.sentences)
        assert core.sentences == ["The disk is full."]
        for name in writes:
            monkeypatch.setattr(core.history._file, name, real[name])
        # The chat itself was never written, so that this alone cannot be.
        _, submit = await core.ask("And now?", session)
        await core.answer(submit, "better")
        await core.close()
        assert core.sentences == ["The disk is full."]
        again = make_core()
        loaded = await again.open()
        assert loaded.sessions[0] == session.record
        assert [turn.reply.text for turn in loaded.sessions[0].turns] == ["fine", "better"]
        await again.close()

    run(story())


def test_two_messages_at_once_are_answered_one_after_the_other(core, run):
    async def story():
        await core.open()
        session = core.chats.new_chat()
        core.intents.send.emit(session.session_id, "one")
        core.intents.send.emit(session.session_id, "two")
        await core.until(lambda: core.client.submits)
        await core.answer(core.client.submits[0], "1")
        await core.until(lambda: len(core.client.submits) == 2)
        await core.answer(core.client.submits[1], "2")
        assert [turn.reply.text for turn in session.record.turns] == ["1", "2"]
        assert session.status == "idle"
        await core.close()

    run(story())


def test_a_tab_closed_right_after_sending_keeps_its_message(make_core, run):
    async def story():
        core = make_core()
        await core.open()
        session = core.chats.new_chat()
        core.intents.send.emit(session.session_id, "keep me")
        core.intents.close_tab.emit(session.session_id)
        await core.until(lambda: core.client.submits)
        await core.answer(core.client.submits[0], "kept")
        await core.close()
        again = make_core()
        loaded = await again.open()
        assert loaded.sessions[0].turns[0].reply.text == "kept"
        await again.close()

    run(story())


def test_half_a_surrogate_pair_does_not_keep_a_message_from_the_disk(core, run):
    async def story():
        await core.open()
        core.chats._send("", "a\ud83d b")  # a signal would drop it on the way
        await core.until(lambda: core.client.submits)
        assert core.sessions.all[0].record.turns[0].user_text == "a\ufffd b"
        await core.answer(core.client.submits[0], "ok")
        assert core.sentences == []
        await core.close()

    run(story())


def test_quitting_marks_what_streams_unfinished(make_core, run):
    async def story():
        core = make_core()
        await core.open()
        _, submit = await core.ask("Go")
        core.client.say(TextDelta(submit.request_id, "so far", (1,)))
        await asyncio.sleep(0.05)
        core.replies.interrupt_all()
        await core.close()
        again = make_core()
        loaded = await again.open()
        reply = loaded.sessions[0].turns[0].reply
        assert (reply.text, reply.state) == ("so far", "unfinished")
        await again.close()

    run(story())


def test_import_gives_a_new_chat_and_bad_files_a_sentence(core, run, tmp_path):
    async def story():
        await core.open()
        session, submit = await core.ask("Go")
        await core.answer(submit, "an `answer`")
        target = tmp_path / "out" / "chat.json"
        core.intents.export.emit(session.session_id, "json", str(target))
        await core.settle()
        assert core.toasts[-1][0].startswith("Saved as chat.json")
        core.intents.import_chat.emit(str(target))
        await core.settle()
        assert len(core.sessions.all) == 2
        copy = core.sessions.all[0].record
        assert copy.session_id != session.session_id
        assert copy.turns[0].reply.text == "an `answer`"
        bad = tmp_path / "bad.json"
        bad.write_text("<html>")
        core.intents.import_chat.emit(str(bad))
        core.intents.export.emit(session.session_id, "md", "/proc/no/such/place.md")
        await core.settle()
        assert "bad.json cannot be imported" in core.sentences[0]
        assert "could not be written" in core.sentences[1]
        await core.close()

    run(story())
