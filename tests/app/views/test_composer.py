"""The composer: sending, stopping, long pastes, and the settings of the chat."""

from __future__ import annotations

import time

import pytest
from PySide6.QtCore import QMimeData, Qt

from app.records import ReplyRecord, Sampling, SessionRecord, TurnRecord
from app.state.intents import Intents
from app.state.session import Session
from app.state.status import AppStatus
from app.views.chat_page import ChatPage


class Desk:
    """A chat's page with its models."""

    def __init__(self, qtbot) -> None:
        self.session = Session(SessionRecord("s", "Chat", 0, 0))
        self.intents, self.status = Intents(), AppStatus()
        self.status.update(phase="ready")
        self.page = ChatPage(self.session, self.status, self.intents)
        qtbot.addWidget(self.page)
        self.page.resize(784, 700)
        self.page.show()
        self.composer, self.edit = self.page.composer, self.page.composer.edit
        self.sent: list[tuple[str, str]] = []
        self.intents.send.connect(lambda *args: self.sent.append(args))

    def paste(self, text: str) -> None:
        data = QMimeData()
        data.setText(text)
        self.edit.insertFromMimeData(data)


@pytest.fixture
def desk(qtbot):
    return Desk(qtbot)


def test_enter_sends_and_shift_enter_starts_a_line(desk, qtbot):
    qtbot.keyClicks(desk.edit, "first")
    qtbot.keyClick(desk.edit, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    qtbot.keyClicks(desk.edit, "second")
    assert desk.sent == []
    qtbot.keyClick(desk.edit, Qt.Key.Key_Return)
    assert desk.sent == [("s", "first\nsecond")]
    assert desk.edit.toPlainText() == ""


@pytest.mark.parametrize("text", ["", "   ", "\n\n"])
def test_nothing_is_not_sent(desk, qtbot, text):
    desk.edit.set_text(text)
    qtbot.keyClick(desk.edit, Qt.Key.Key_Enter)
    assert desk.sent == []
    assert not desk.composer.send_button.isEnabled()


@pytest.mark.parametrize("phase", ["none", "loading", "failed", "stopped"])
def test_without_a_model_the_text_stays_and_the_reason_is_said(desk, qtbot, phase):
    desk.status.update(phase=phase)
    qtbot.keyClicks(desk.edit, "hello")
    qtbot.keyClick(desk.edit, Qt.Key.Key_Return)
    assert desk.sent == []
    assert desk.edit.toPlainText() == "hello"
    assert desk.composer.hint.text()


def test_send_becomes_stop_and_enter_queues(desk, qtbot):
    button = desk.composer.send_button
    assert "Send" in button.accessibleName()
    desk.session.set_status("running")
    assert "Stop" in button.accessibleName()
    with qtbot.waitSignal(desk.intents.stop) as asked:
        qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    assert asked.args == ["s"]
    qtbot.keyClicks(desk.edit, "next")
    assert desk.composer.hint.text() == "queued on Enter"
    qtbot.keyClick(desk.edit, Qt.Key.Key_Return)
    assert desk.sent == [("s", "next")]
    desk.session.set_status("idle")
    assert "Send" in button.accessibleName()


@pytest.mark.parametrize("text", ["x" * 1_000_000, "line of text\n" * 80_000, "y" * 200_000])
def test_a_long_paste_is_a_chip_and_sent_whole(desk, qtbot, text):
    qtbot.keyClicks(desk.edit, "Sum up:")
    start = time.perf_counter()
    desk.paste(text)
    qtbot.keyClicks(desk.edit, " please")
    qtbot.keyClick(desk.edit, Qt.Key.Key_Return)
    assert time.perf_counter() - start < 2
    assert desk.sent == [("s", "Sum up: please\n\n" + text)]
    assert desk.composer.text() == ""


def test_a_pasted_chip_can_be_removed(desk):
    desk.paste("x" * 50_000)
    chip = desk.composer._pasted[0]
    assert chip.accessibleName() == "Pasted text, 50 kB"
    chip.remove_wanted.emit()
    assert desk.composer.text() == ""
    assert not desk.composer.can_send


def test_a_short_paste_is_plain_text(desk):
    data = QMimeData()
    data.setHtml("<b>bold</b><img src='file:///x.png'>")
    data.setText("bold\nline")
    desk.edit.insertFromMimeData(data)
    assert desk.edit.toPlainText() == "bold\nline"


def test_text_that_starts_with_ufffe_arrives(desk, qtbot):
    desk.edit.set_text("x")
    desk.composer.keep_pasted("\ufffehello")
    desk.edit.set_text("")
    qtbot.keyClick(desk.edit, Qt.Key.Key_Return)
    assert desk.sent == [("s", "\ufffdhello")]


def test_it_grows_with_the_text_and_no_further(desk):
    assert desk.composer.height() == 76
    desk.edit.set_text("a\nb\nc\nd")
    assert 76 < desk.composer.height() < 264
    desk.edit.set_text("a\n" * 60)
    assert desk.composer.height() == 264


def test_the_context_is_shown_and_warns(desk):
    from engine.messages import ModelInfo

    model = ModelInfo(
        "m", "f", "llama", 1000, 1, "cpu", "CPU", "cpu", "fast", "fast", "fp32", 1, 8, 16, 64,
        True, "1",
    )  # fmt: skip
    desk.status.update(model=model)
    reply = ReplyRecord("r", "x", "complete", prompt_tokens=100, new_tokens=60)
    desk.session.add_turn(TurnRecord("t", "q", 0))
    desk.session.put_reply(0, reply)
    assert desk.composer.context.text() == "160 of 1,000"
    desk.session.put_reply(0, ReplyRecord("r", "x", "complete", prompt_tokens=900))
    assert desk.composer.context.text() == "900 of 1,000, context nearly full"
    assert desk.composer.context.property("tone") == "warn"


def test_settings_are_checked_in_place(desk, qtbot):
    desk.composer.open_settings()
    panel = desk.composer._settings
    assert panel is not None
    field = panel.edit_of("top_p")
    field.setText("1.5")
    panel._check()
    assert panel.error.text() == "Top-p: a number from 0 to 1."
    assert field.property("state") == "error"
    with qtbot.assertNotEmitted(desk.intents.set_sampling):
        panel.save()
    field.setText("0,5")
    panel.edit_of("seed").setText("7")
    panel.edit_of("max_tokens").setText("")
    with qtbot.waitSignal(desk.intents.set_sampling) as asked:
        panel.save()
    assert asked.args == ["s", Sampling(top_p=0.5, seed=7)]
    panel.prompt.setPlainText("Be brief.")
    with qtbot.waitSignal(desk.intents.set_system_prompt) as asked:
        panel.hide()
    assert asked.args == ["s", "Be brief."]


@pytest.mark.parametrize(
    ("name", "text"),
    [("temperature", "hot"), ("temperature", "-1"), ("top_k", "2.5"), ("seed", "-3"),
     ("max_tokens", "0"), ("min_p", "nan"), ("temperature", "inf"), ("top_k", "")],
)  # fmt: skip
def test_bad_values_are_refused(desk, name, text):
    desk.composer.open_settings()
    panel = desk.composer._settings
    assert panel is not None
    panel.edit_of(name).setText(text)
    panel._check()
    assert panel.error.text()
    panel.hide()
