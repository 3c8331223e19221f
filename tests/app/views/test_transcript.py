"""The transcript: what it shows, what it costs, and that it leaves the reader in peace."""

from __future__ import annotations

import html
import time

import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QGuiApplication, QHelpEvent, QWheelEvent
from PySide6.QtWidgets import QApplication, QStackedWidget, QToolTip, QWidget

from app.records import ReplyRecord, SessionRecord, TurnRecord
from app.state.intents import Intents
from app.state.session import ReplyDetails, Session
from app.views.transcript import TranscriptView
from app.views.transcript_code import CodeItem
from app.views.transcript_meta import MetaItem, meta_parts
from app.views.transcript_notes import NoteItem


@pytest.fixture(autouse=True)
def light_theme(look):
    look.set_choice("light")
    return look


def told(text: str, state: str = "complete", **facts) -> ReplyRecord:
    return ReplyRecord(facts.pop("reply_id", "r"), text, state, **facts)


def session_of(*turns: tuple[str, ReplyRecord | None]) -> Session:
    records = tuple(
        TurnRecord(f"t{number}", text, 0, (reply,) if reply else ())
        for number, (text, reply) in enumerate(turns)
    )
    return Session(SessionRecord("s", "Chat", 0, 0, turns=records))


def shown_view(qtbot, session: Session, width: int = 784, height: int = 600) -> TranscriptView:
    view = TranscriptView(session, Intents())
    qtbot.addWidget(view)
    view.resize(width, height)
    view.show()
    qtbot.waitExposed(view)
    return view


def words_of(view: TranscriptView) -> str:
    view.select_all()
    return view.selected_text()


LONG = "\n\n".join(f"Paragraph {number} " + "word " * 60 for number in range(40))


def streaming_session(text: str = "") -> Session:
    session = session_of(("go", told(text, "streaming")))
    session.set_status("running")
    return session


def test_html_and_odd_characters_are_shown(qtbot):
    session = streaming_session()
    view = shown_view(qtbot, session)
    for piece in ("<smirk> hello ", "\ufffetail", " 😀 end"):
        session.append_text(0, piece)
    qtbot.waitUntil(lambda: words_of(view) == "go\n\n<smirk> hello \ufffdtail 😀 end")


def test_a_hidden_view_does_nothing_and_loses_nothing(qtbot):
    session = streaming_session("one")
    stack = QStackedWidget()
    qtbot.addWidget(stack)
    view = TranscriptView(session, Intents())
    stack.addWidget(QWidget())
    stack.addWidget(view)
    stack.resize(700, 500)
    stack.show()
    for number in range(50):
        session.append_text(0, f" {number}")
    qtbot.wait(20)
    assert view.document.items == []
    stack.setCurrentWidget(view)
    assert words_of(view) == "go\n\none " + " ".join(str(n) for n in range(50))
    stack.setCurrentIndex(0)
    session.append_text(0, " tail")
    shown_before = view.document.items[-1].text
    qtbot.wait(20)
    assert view.document.items[-1].text == shown_before
    stack.setCurrentWidget(view)
    assert words_of(view).endswith("49 tail")


def wheel(view: TranscriptView, delta: int) -> None:
    middle = QPointF(300, 200)
    event = QWheelEvent(
        middle, view.viewport().mapToGlobal(middle), QPoint(0, 0), QPoint(0, delta),
        Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase,
        False,
    )  # fmt: skip
    QGuiApplication.sendEvent(view.viewport(), event)


def test_the_end_is_followed_until_the_user_scrolls_up(qtbot):
    session = streaming_session(LONG)
    view = shown_view(qtbot, session)
    bar = view.verticalScrollBar()
    assert bar.maximum() > 1000
    assert bar.value() == bar.maximum()
    session.append_text(0, "\n\n" + LONG)
    before = bar.maximum()
    qtbot.waitUntil(lambda: bar.maximum() > before)
    assert bar.value() == bar.maximum()
    assert not view.jump_button.isVisible()

    wheel(view, 120)
    value = bar.value()
    assert value < bar.maximum()
    before = bar.maximum()
    session.append_text(0, "\n\n" + LONG)
    qtbot.waitUntil(lambda: bar.maximum() > before)
    assert bar.value() == value  # what the user reads has not moved
    assert view.jump_button.isVisible()

    view.jump_button.click()
    assert bar.value() == bar.maximum()
    assert not view.jump_button.isVisible()
    session.append_text(0, "\n\n" + LONG)
    before = bar.maximum()
    qtbot.waitUntil(lambda: bar.maximum() > before)
    assert bar.value() == bar.maximum()


def test_scrolling_back_to_the_end_follows_again(qtbot):
    view = shown_view(qtbot, streaming_session(LONG))
    bar = view.verticalScrollBar()
    bar.setValue(bar.maximum() - 500)
    assert not view.following
    bar.setValue(bar.maximum())
    assert view.following


def test_another_width_keeps_the_place_of_the_reader(qtbot):
    view = shown_view(qtbot, session_of(("go", told(LONG))), width=800)
    bar = view.verticalScrollBar()
    bar.setValue(bar.maximum() // 2)
    item, where = view._reference(bar.value())
    view.resize(500, 600)
    index = view.document.items.index(item)
    assert view.document.tops[index] - bar.value() == pytest.approx(where, abs=2)


def test_only_what_is_in_view_is_laid_out(qtbot):
    turns = [(f"question {n}", told(LONG, reply_id=f"r{n}")) for n in range(40)]
    view = shown_view(qtbot, session_of(*turns))
    fresh = sum(item.is_fresh(view.document.width) for item in view.document.items)
    assert len(view.document.items) > 1500
    assert fresh < 60


def test_streaming_keeps_the_items_that_are_settled(qtbot):
    session = streaming_session("First.\n\n```py\nx = 1\n")
    view = shown_view(qtbot, session)
    first, code = view.document.items[1], view.document.items[2]
    session.append_text(0, "y = 2\n```\n\nAfter")
    qtbot.waitUntil(lambda: len(view.document.items) == 4)
    assert view.document.items[1] is first
    assert view.document.items[2] is code
    assert isinstance(code, CodeItem)
    assert code.text == "x = 1\ny = 2"


def test_the_cost_of_a_token_stays_small(qtbot):
    session = streaming_session()
    view = shown_view(qtbot, session)
    text = (
        "Some *words* and `code`.\n\n- one\n- two\n\n```py\ndef f():\n    return 1\n```\n\n"
    ) * 100
    pieces = [text[at : at + 4] for at in range(0, 8000, 4)]  # 2,000 tokens
    start = time.perf_counter()
    for piece in pieces:
        session.append_text(0, piece)
        view._refresh()  # a whole pass for each token; the window makes one for each frame
    per_token_ms = (time.perf_counter() - start) / len(pieces) * 1000
    assert per_token_ms < 2  # 0.3 on a quiet core


def test_a_long_line_and_a_long_message_do_not_freeze(qtbot):
    start = time.perf_counter()
    view = shown_view(qtbot, session_of(("x" * 1_000_000, told("y" * 200_000))))
    view.grab()
    view.verticalScrollBar().setValue(0)
    view.grab()
    view.resize(500, 600)
    view.grab()
    assert time.perf_counter() - start < 5
    view.select_all()
    assert len(view.selected_text()) == 1_200_002


def test_a_long_line_that_streams_does_not_freeze(qtbot):
    session = streaming_session("z" * 100_000)
    view = shown_view(qtbot, session)
    start = time.perf_counter()
    for _ in range(20):
        session.append_text(0, "abcd")
        view._refresh()
    assert (time.perf_counter() - start) / 20 < 0.2


def test_selection_with_the_mouse_and_copy(qtbot):
    view = shown_view(qtbot, session_of(("Question", told("Answer with **bold** words"))))
    left, _ = view._column()
    port = view.viewport()

    def on(item: int) -> int:
        return int(view.document.tops[item] - view.verticalScrollBar().value()) + 11

    qtbot.mousePress(port, Qt.MouseButton.LeftButton, pos=QPoint(left, on(1)))
    view._cursor = view._place_at(QPointF(left + 600, on(1)))
    qtbot.keyClick(view, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == "Answer with bold words"
    qtbot.keyClick(view, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    qtbot.keyClick(view, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == "Question\n\nAnswer with bold words"


def test_copying_keeps_lists_and_code(qtbot):
    text = "Intro:\n\n- one\n- two\n\n```py\nx = 1\n```"
    view = shown_view(qtbot, session_of(("q", told(text))))
    assert words_of(view) == "q\n\nIntro:\n\n- one\n- two\n\nx = 1"


def test_the_copy_button_of_a_code_block(qtbot):
    view = shown_view(qtbot, session_of(("q", told("```py\nx = 1\ny = 2\n```"))))
    code = view.document.items[1]
    assert isinstance(code, CodeItem)
    place = next(left for tool, left in code._tools() if tool == "copy")
    y = int(view.document.tops[1] - view.verticalScrollBar().value()) + 16
    point = QPoint(int(view._column()[0] + place + 10), y)
    qtbot.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=point)
    assert QGuiApplication.clipboard().text() == "x = 1\ny = 2"


def test_wrapping_code_makes_it_higher_and_scroll_no_more(qtbot):
    view = shown_view(qtbot, session_of(("q", told("```\n" + "word " * 100 + "\n```"))))
    code = view.document.items[1]
    assert isinstance(code, CodeItem)
    height = code.height
    assert code.max_scroll_x > 0
    view._use_tool(code, "wrap")
    assert code.height > height
    assert code.max_scroll_x == 0


def test_the_line_under_a_reply_says_what_it_took():
    reply = told(
        "x", finish_reason="length", num_blocks=38, kv_bytes=89_653_248, tokens_per_s=38.14,
        ttft_ms=190, prompt_tokens=6393, cached_tokens=6352,
    )  # fmt: skip
    assert [words for words, _ in meta_parts(reply)] == [
        "38 blocks · 85.5 MiB", "Token limit", "38.1 tok/s", "first token 0.19 s",
        "6,393 prompt, 6,352 from cache",
    ]  # fmt: skip
    assert [w for w, _ in meta_parts(told("x", finish_reason="cancelled"))] == ["Stopped"]
    assert [w for w, _ in meta_parts(told("x", "unfinished"))] == ["Unfinished: interrupted"]


def test_a_failed_reply_keeps_its_text_and_offers_retry(qtbot):
    session = session_of(("q", told("so far", "failed", error="The pool is too small.")))
    intents = Intents()
    view = TranscriptView(session, intents)
    qtbot.addWidget(view)
    view.resize(700, 500)
    view.show()
    notes = [item for item in view.document.items if isinstance(item, NoteItem)]
    assert [note.sentence for note in notes] == ["The pool is too small."]
    assert "so far" in words_of(view)
    assert view.retry_button.isVisible()
    with qtbot.waitSignal(intents.regenerate) as asked:
        view.retry_button.click()
    assert asked.args == ["s"]


def test_versions_and_regenerate(qtbot):
    session = session_of(("q", told("first")))
    session.put_reply(0, told("second", reply_id="r2"))
    intents = Intents()
    view = TranscriptView(session, intents)
    qtbot.addWidget(view)
    view.resize(700, 500)
    view.show()
    bar = view.actions_bar
    assert bar.isVisible()
    assert bar.count.text() == "2/2"
    with qtbot.waitSignal(intents.choose_version) as asked:
        bar.previous.click()
    assert asked.args == ["s", 0, 0]
    session.choose(0, 0)
    qtbot.waitUntil(lambda: words_of(view) == "q\n\nfirst")
    with qtbot.waitSignal(intents.regenerate):
        bar.regenerate.click()
    bar.copy.click()
    assert QGuiApplication.clipboard().text() == "first"


def test_waiting_and_queued_messages_say_so(qtbot):
    session = session_of(("q", told("", "streaming")), ("next", None))
    session.set_status("waiting", "2nd in line")
    view = shown_view(qtbot, session)
    notes = [item.sentence for item in view.document.items if isinstance(item, NoteItem)]
    assert notes == ["2nd in line", "In line: goes when the answer above ends."]
    session.put_reply(0, told("done"))
    session.set_status("idle")
    qtbot.waitUntil(lambda: sum(isinstance(item, MetaItem) for item in view.document.items) == 1)


def test_a_new_theme_lays_out_again(qtbot, light_theme):
    view = shown_view(qtbot, session_of(("q", told("text"))))
    item = view.document.items[0]
    assert item.is_fresh(view.document.width)
    light_theme.set_choice("dark")
    view.grab()
    assert item.is_fresh(view.document.width)


def sentences(view: TranscriptView) -> list[str]:
    return [item.sentence for item in view.document.items if isinstance(item, NoteItem)]


def test_a_pause_counts_its_seconds_only_while_it_is_in_sight(qtbot, monkeypatch):
    monkeypatch.setattr("app.views.transcript_canvas.CLOCK_MS", 20)
    session = streaming_session("text")
    view = shown_view(qtbot, session)
    assert not view._clock.isActive()
    session.set_status("paused", "Paused", "The pool is full.", time.monotonic() - 11.9)
    assert view._clock.isActive()
    qtbot.waitUntil(lambda: sentences(view) == ["Paused 11 s: the pool is full."])
    qtbot.waitUntil(lambda: sentences(view) == ["Paused 12 s: the pool is full."])
    view.hide()
    assert not view._clock.isActive()
    session.paused_s -= 100
    view.show()
    assert view._clock.isActive()
    qtbot.waitUntil(lambda: sentences(view)[0].startswith("Paused 1 min 5"))
    session.set_status("running")
    assert not view._clock.isActive()
    qtbot.waitUntil(lambda: sentences(view) == [])


def test_the_sentence_stands_below_the_reply_not_the_short_form(qtbot):
    session = streaming_session()
    view = shown_view(qtbot, session)
    session.set_status("reading", "Reading 25 %", "Reading the prompt: 1,024 of 4,000 tokens")
    qtbot.waitUntil(lambda: sentences(view) == ["Reading the prompt: 1,024 of 4,000 tokens"])


FACTS = {
    "prompt_tokens": 69, "cached_tokens": 64, "new_tokens": 5, "ttft_ms": 120.0,
    "tokens_per_s": 41.24, "num_blocks": 5, "kv_bytes": 5 * 2**20,
}  # fmt: skip
PLAIN_TIP = ["5 blocks · 5.00 MiB", "41.2 tok/s", "First token 0.12 s"]


def tip_at(view: TranscriptView, x: float, y: float) -> str:
    place = QPoint(round(x), round(y))
    event = QHelpEvent(QEvent.Type.ToolTip, place, view.viewport().mapToGlobal(place))
    QApplication.sendEvent(view.viewport(), event)
    return QToolTip.text()


@pytest.mark.parametrize(
    ("details", "more"),
    [
        (None, ["64 of 69 prompt tokens reused"]),
        (ReplyDetails(68, "first difference: “<b>” in message 1 (system)", 0.031),
         ["68 of 69 prompt tokens reused", "First difference: “<b>” in message 1 (system)",
          "3.1 % of the slots it held were empty"]),
        (ReplyDetails(0, waste_ratio=0.0002),
         ["0 of 69 prompt tokens reused", "under 0.1 % of the slots it held were empty"]),
    ],
)  # fmt: skip
def test_the_line_under_a_reply_tells_everything_under_the_pointer(qtbot, details, more):
    session = session_of(("q", told("text", **FACTS)))
    if details is not None:
        session.details["r"] = details
    view = shown_view(qtbot, session)
    index = view.document.last_item_of(0)
    item, top = view.document.items[index], view.document.tops[index]
    assert isinstance(item, MetaItem)
    lines = [text[0].upper() + text[1:] for text in PLAIN_TIP + more]
    assert item.tip.split("\n") == lines
    shown = tip_at(view, view._column()[0] + 10, top + 10)
    for line in lines:
        assert html.escape(line) in shown or line in shown
    assert ("<br>" if "<" in item.tip else "\n") in shown
    tip_at(view, view._column()[0] + 10, 15)  # over the user's words
    qtbot.waitUntil(lambda: QToolTip.text() == "")


def test_details_of_the_chosen_version_are_shown(qtbot):
    session = session_of(("q", told("first", reply_id="r0", **FACTS)))
    session.details["r1"] = ReplyDetails(16)
    session.put_reply(0, told("second", reply_id="r1", **FACTS))
    view = shown_view(qtbot, session)

    def tip() -> str:
        return view.document.items[view.document.last_item_of(0)].tip

    assert "16 of 69 prompt tokens reused" in tip()
    session.choose(0, 0)
    qtbot.waitUntil(lambda: "64 of 69 prompt tokens reused" in tip())
