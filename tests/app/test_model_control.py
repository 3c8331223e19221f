"""ModelControl: loading, switching, fetching, and an engine that stops."""

from __future__ import annotations

import threading

from engine.errors import DownloadError
from engine.messages import (
    CancelLoad,
    EngineStopped,
    Failed,
    Finished,
    LoadModel,
    ModelFailed,
    ModelLoaded,
    ModelLoading,
    TextDelta,
)


def last_reply(session):
    return session.record.turns[-1].reply


async def send(core, text="Go"):
    session = core.chats.new_chat()
    core.intents.send.emit(session.session_id, text)
    await core.settle()
    return session


def test_without_a_model_the_message_is_kept_and_a_sentence_says_why(core, run):
    async def story():
        await core.open(with_model=False)
        session = await send(core)
        assert last_reply(session).state == "failed"
        assert last_reply(session).error.startswith("No model is loaded")
        assert core.client.submits == []
        await core.load()
        core.intents.regenerate.emit(session.session_id)
        await core.until(lambda: core.client.submits)
        await core.answer(core.client.submits[0], "now")
        assert last_reply(session).text == "now"
        await core.close()

    run(story())


def test_while_a_model_loads_messages_wait_for_it(core, run):
    async def story():
        await core.open(with_model=False)
        core.intents.open_model.emit("/models/a.gguf")
        core.client.say(ModelLoading("/models/a.gguf", 0.5, "Reading weights"))
        await core.until(lambda: core.status.fraction == 0.5)
        session = await send(core)
        assert (session.status, session.status_text) == ("waiting", "Waiting for the model")
        assert core.client.submits == []
        await core.load()
        await core.until(lambda: core.client.submits)
        await core.answer(core.client.submits[0], "hi")
        await core.close()

    run(story())


def test_a_load_that_fails_says_so_to_those_who_wait(core, run):
    async def story():
        await core.open(with_model=False)
        core.intents.open_model.emit("/models/bad.gguf")
        session = await send(core)
        core.client.say(ModelFailed("/models/bad.gguf", "bad.gguf is cut short."))
        await core.until(lambda: core.status.phase == "failed")
        assert core.status.message == "bad.gguf is cut short."
        assert last_reply(session).error.startswith("bad.gguf is cut short.")
        await core.close()

    run(story())


def test_switching_models_ends_replies_with_their_text(core, run):
    async def story():
        await core.open()
        session, submit = await core.ask("Go")
        core.client.say(TextDelta(submit.request_id, "half", (1,)))
        await core.until(lambda: last_reply(session).text == "half")
        core.intents.open_model.emit("/models/b.gguf")
        await core.settle()
        assert last_reply(session).state == "streaming"  # the file may not be fit for use
        core.client.say(Failed(submit.request_id, "The model was changed."))
        core.client.say(ModelLoading("/models/b.gguf", 0.0, "Opening the file"))
        await core.until(lambda: core.status.model is None)
        core.say_loaded("/models/b.gguf")
        await core.until(lambda: core.status.phase == "ready")
        assert (last_reply(session).state, last_reply(session).text) == ("failed", "half")
        assert "model was changed" in last_reply(session).error
        core.client.say(Finished(submit.request_id, "stop", None))  # too late: nobody minds
        assert core.status.model.file == "/models/b.gguf"
        await core.close()

    run(story())


def test_a_file_that_is_not_fit_leaves_the_model_and_its_replies_alone(core, run):
    async def story():
        await core.open()
        session, submit = await core.ask("Go")
        core.client.say(TextDelta(submit.request_id, "half", (1,)))
        core.intents.open_model.emit("/models/bad.gguf")
        early = core.chats.new_chat()
        core.intents.send.emit(early.session_id, "Me too")
        await core.until(lambda: early.status_text == "Waiting for the model")
        core.client.say(ModelFailed("/models/bad.gguf", "bad.gguf is cut short.", is_kept=True))
        await core.until(lambda: core.status.phase == "ready")
        assert core.sentences == ["bad.gguf is cut short. Fake goes on."]
        await core.until(lambda: len(core.client.submits) == 2)
        await core.answer(core.client.submits[1], "yes")
        await core.answer(submit, " and whole")
        assert last_reply(session).text == "half and whole"
        assert last_reply(early).text == "yes"
        core.client.say(EngineStopped("boom"))
        await core.until(lambda: core.status.phase == "stopped")
        core.intents.restart_engine.emit()
        assert core.client.of(LoadModel) == [LoadModel("/models/a.gguf")]
        await core.load()
        await core.close()

    run(story())


def test_a_load_can_be_cancelled_and_that_is_no_error(core, run):
    async def story():
        await core.open(with_model=False)
        core.intents.cancel_load.emit()
        assert core.client.of(CancelLoad) == []  # nothing is under way
        core.intents.open_model.emit("/models/big.gguf")
        core.client.say(ModelLoading("/models/big.gguf", 0.5, "Reading weights"))
        session = await send(core)
        core.intents.cancel_load.emit()
        assert core.client.commands[-1] == CancelLoad()
        assert (core.status.phase, core.status.note) == ("loading", "Cancelling")
        said = "Loading big.gguf was cancelled."
        core.client.say(ModelFailed("/models/big.gguf", said, is_cancelled=True))
        await core.until(lambda: core.status.phase == "none")
        assert (core.status.message, core.status.fraction) == ("", 0.0)
        assert (core.toasts, core.sentences) == ([(said, "")], [])
        assert last_reply(session).error.startswith(said)
        core.client.say(EngineStopped("boom"))
        await core.until(lambda: core.status.phase == "stopped")
        core.intents.restart_engine.emit()
        assert core.client.of(LoadModel) == []  # what was cancelled does not come back by itself
        await core.close()

    run(story())


def test_a_load_cancelled_early_leaves_the_present_model(core, run):
    async def story():
        await core.open()
        core.intents.open_model.emit("/models/big.gguf")
        core.intents.cancel_load.emit()
        said = "Loading big.gguf was cancelled."
        failed = ModelFailed("/models/big.gguf", said, is_kept=True, is_cancelled=True)
        core.client.say(failed)
        await core.until(lambda: core.status.phase == "ready")
        assert core.status.model.file == "/models/a.gguf"
        assert (core.toasts, core.sentences) == ([(f"{said} Fake goes on.", "")], [])
        await core.close()

    run(story())


def test_the_model_that_came_before_a_bad_one_is_shown(core, run):
    """Two were asked for quickly, and the second is not fit for use."""

    async def story():
        await core.open(with_model=False)
        core.intents.open_model.emit("/models/a.gguf")
        core.intents.open_model.emit("/models/bad.gguf")
        core.client.say(ModelLoading("/models/a.gguf", 0.5, "Reading"))
        core.say_loaded("/models/a.gguf")
        core.client.say(ModelFailed("/models/bad.gguf", "bad.gguf is no model.", is_kept=True))
        await core.until(lambda: core.status.phase == "ready")
        assert core.status.model.file == "/models/a.gguf"
        await core.close()

    run(story())


def test_news_of_a_model_nobody_wants_any_more_is_ignored(core, run):
    async def story():
        await core.open(with_model=False)
        core.intents.open_model.emit("/models/a.gguf")
        core.intents.open_model.emit("/models/b.gguf")
        core.client.say(ModelFailed("/models/a.gguf", "a is broken"))
        core.client.say(ModelLoading("/models/b.gguf", 0.25, "Reading"))
        await core.until(lambda: core.status.fraction == 0.25)
        assert (core.status.phase, core.status.message) == ("loading", "")
        await core.close()

    run(story())


def test_an_engine_that_stops_can_be_restarted_and_nothing_is_lost(core, run):
    async def story():
        await core.open()
        session, submit = await core.ask("Go")
        core.client.say(TextDelta(submit.request_id, "half", (1,)))
        core.client.say(EngineStopped("The engine stopped: boom"))
        await core.until(lambda: core.status.phase == "stopped")
        assert core.status.message == "The engine stopped: boom"
        assert (last_reply(session).text, last_reply(session).state) == ("half", "failed")
        core.intents.send.emit(session.session_id, "Again")
        await core.settle()
        assert "restart it" in last_reply(session).error
        core.intents.restart_engine.emit()
        assert len(core.clients) == 2
        assert core.client.of(LoadModel) == [LoadModel("/models/a.gguf")]
        await core.load()
        core.intents.regenerate.emit(session.session_id)
        await core.until(lambda: core.client.submits)
        await core.answer(core.client.submits[0], "whole")
        assert last_reply(session).text == "whole"
        await core.close()

    run(story())


def test_the_starter_is_fetched_and_loaded(core, run, tmp_path):
    async def story():
        await core.open(with_model=False)
        go_on = threading.Event()
        fractions = []
        core.status.changed.connect(lambda: fractions.append(core.status.fraction))

        def fetch(folder, progress, cancelled):
            progress(3 * 2**31, 4 * 2**31)  # more than 32 bits
            assert go_on.wait(5)
            return folder / "starter.gguf"

        core.fetch = fetch
        core.intents.get_starter.emit()
        await core.until(lambda: core.status.fraction == 0.75)
        session = core.chats.new_chat()
        core.intents.send.emit(session.session_id, "early")
        await core.until(lambda: session.status_text == "Waiting for the model")
        go_on.set()
        await core.until(lambda: core.client.of(LoadModel))
        path = str(tmp_path / "starter.gguf")
        assert core.client.of(LoadModel)[0].path == path
        await core.load(path)
        await core.until(lambda: core.client.submits)
        await core.answer(core.client.submits[0], "ok")
        await core.close()

    run(story())


def test_a_fetch_that_fails_or_is_cancelled_goes_back_to_where_it_was(core, run):
    async def story():
        await core.open(with_model=False)

        def fails(folder, progress, cancelled):
            raise DownloadError("There is no network.")

        def waits(folder, progress, cancelled):
            while not cancelled():
                threading.Event().wait(0.01)
            raise DownloadError("cancelled")

        core.fetch = fails
        core.intents.get_starter.emit()
        await core.until(lambda: core.status.phase == "failed")
        assert core.status.message == "There is no network."
        core.fetch = waits
        core.intents.get_starter.emit()
        await core.until(lambda: core.status.phase == "fetching")
        core.intents.cancel_starter.emit()
        await core.until(lambda: core.status.phase == "none")
        assert core.status.message == ""
        await core.close()

    run(story())


def test_loaded_again_by_the_same_path_is_a_new_pool(core, run):
    async def story():
        await core.open()
        session, submit = await core.ask("Go")
        await core.answer(submit, "x")
        assert session.owner == 0
        await core.load()
        assert session.owner is None
        assert isinstance(core.client.commands[-1], LoadModel)
        core.client.say(ModelLoaded(core.status.model))
        await core.close()

    run(story())
