"""Notices: said once, and again when another model has been loaded."""

from __future__ import annotations

from engine.messages import Notice

SHORT = "Memory ran short in a step: 1 reply was paused. Closing other programs helps."


def test_a_notice_is_said_once_for_each_model(core, run):
    async def story():
        await core.open()
        core.client.say(Notice(SHORT), Notice("Another thing."), Notice(SHORT))
        core.client.say(Notice(SHORT))
        await core.settle()
        assert core.notices_shown == [SHORT, "Another thing."]
        await core.load("/models/b.gguf")
        core.client.say(Notice(SHORT))
        await core.settle()
        assert core.notices_shown == [SHORT, "Another thing.", SHORT]
        assert core.sentences == []  # it is no error
        await core.close()

    run(story())
