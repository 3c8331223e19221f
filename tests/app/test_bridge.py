"""EngineBridge: order, merging, and what comes before what."""

from __future__ import annotations

import threading

import pytest

from app.bridge import EngineBridge
from engine.errors import EngineStoppedError
from engine.messages import (
    EngineStopped,
    Finished,
    Notice,
    PoolSnapshot,
    PrefixFound,
    RequestState,
    StateChanged,
    StepEvents,
    StepStats,
    TextDelta,
    Usage,
)

USAGE = Usage(1, 0, 1, 1.0, 1.0, 0, 1, 1)


class SilentClient:
    def start(self):
        pass

    def subscribe(self, sink):
        self.sink = sink

    def next_request_id(self):
        return 1

    def send(self, command):
        pass

    def join(self, timeout_s):
        return True


@pytest.fixture
def bridge(qapp):
    bridge = EngineBridge(SilentClient)
    bridge.start()
    return bridge


@pytest.fixture
def heard(bridge):
    """Everything the bridge says, in order, as short tuples."""
    log = []
    bridge.text.connect(lambda *args: log.append(("text", *args)))
    bridge.state.connect(lambda event: log.append(("state", event.request_id, event.state.value)))
    bridge.finished.connect(lambda event: log.append(("finished", event.request_id)))
    bridge.stopped.connect(lambda reason: log.append(("stopped", reason)))
    bridge.pool.connect(lambda snapshot: log.append(("pool", snapshot.time_s)))
    return log


def delta(request_id, text):
    return StepEvents((TextDelta(request_id, text, (1,)),))


def test_200_000_posts_from_a_thread_arrive_complete_and_in_order(qtbot, bridge, heard):
    def engine():
        for number in range(200_000):
            bridge.post(delta(number % 3, f"{number} "))
        bridge.post(StepEvents((EngineStopped(""),)))

    thread = threading.Thread(target=engine)
    thread.start()
    qtbot.waitUntil(lambda: heard[-1:] == [("stopped", "")], timeout=30_000)
    thread.join()
    for request_id in range(3):
        text = "".join(one[2] for one in heard if one[:2] == ("text", request_id))
        assert [int(word) for word in text.split()] == list(range(request_id, 200_000, 3))
    assert sum(one[3] for one in heard if one[0] == "text") == 200_000
    assert len(heard) < 20_000  # merged: far fewer signals than posts


def test_text_comes_before_the_end_and_before_a_pause(qtbot, bridge, heard):
    paused = StateChanged(1, RequestState.PAUSED)
    bridge.post(delta(2, "other"))
    bridge.post(delta(1, "a"))
    bridge.post(StepEvents((TextDelta(1, "b", (2,)), paused, TextDelta(1, "c", (3, 4)))))
    bridge.post(StepEvents((Finished(1, "stop", USAGE),)))
    qtbot.waitUntil(lambda: ("text", 2, "other", 1) in heard)
    assert [one for one in heard if one[1] == 1] == [
        ("text", 1, "ab", 2),
        ("state", 1, "paused"),
        ("text", 1, "c", 2),
        ("finished", 1),
    ]


@pytest.mark.parametrize("text", ["\ufffeabc", "\ufeffabc", "\0", "😀"])
def test_text_that_qt_would_garble_arrives_as_it_is(qtbot, bridge, heard, text):
    bridge.post(delta(1, text))
    qtbot.waitUntil(lambda: bool(heard))
    assert heard == [("text", 1, text, 1)]


def test_the_first_text_is_given_out_at_once_and_the_timer_stops_in_silence(qtbot, bridge, heard):
    bridge.post(delta(1, "a"))
    qtbot.waitUntil(lambda: bool(heard), timeout=1000)
    assert bridge._frame.isActive()
    for text in "bcd":
        bridge.post(delta(1, text))
    qtbot.waitUntil(lambda: len(heard) == 2)
    assert heard[1] == ("text", 1, "bcd", 3)
    qtbot.waitUntil(lambda: not bridge._frame.isActive())


def test_only_the_newest_picture_and_all_statistics(qtbot, bridge, heard):
    stats = []
    bridge.stats.connect(stats.append)
    for number in range(5):
        picture = PoolSnapshot(1, 16, 1, b"\0", b"\0\0", b"\0", 0, float(number))
        bridge.post(StepEvents((), StepStats(0, 1, 1.0, 1, 0, 0.0, float(number)), picture))
    qtbot.waitUntil(lambda: bool(heard))
    assert heard == [("pool", 4.0)]
    assert [one.time_s for one in stats] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_an_engine_that_stopped_can_be_replaced(qtbot, bridge, heard):
    bridge.post(StepEvents((EngineStopped("out of memory"),)))
    qtbot.waitUntil(lambda: bool(heard))
    with pytest.raises(EngineStoppedError):
        bridge.next_request_id()
    bridge.start()
    assert bridge.next_request_id() == 1


def test_a_notice_and_what_was_found_of_a_prompt_have_signals(qtbot, bridge):
    found, notices = PrefixFound(1, 16, 20), []
    bridge.notice.connect(notices.append)
    with qtbot.waitSignal(bridge.prefix) as told:
        bridge.post(StepEvents((Notice("Memory ran short."), found)))
    assert told.args == [found]
    assert notices == ["Memory ran short."]
