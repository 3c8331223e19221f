"""Settings of one chat: values checked as they are typed, asked for when they are valid."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QMimeData, Qt
from PySide6.QtWidgets import QPushButton, QWidget

from app.records import Sampling, SessionRecord
from app.state.intents import Intents
from app.state.session import Session
from app.views.chat_settings import FIELDS, ChatSettings

LEFT = Qt.MouseButton.LeftButton


class Sheet:
    """The panel of one chat; the chat obeys, as the application does."""

    def __init__(self, qtbot, prompt: str = "", sampling: Sampling | None = None) -> None:
        record = SessionRecord(
            "s", "Chat", 0, 0, system_prompt=prompt, sampling=sampling or Sampling()
        )
        self.session, self.intents, self.qtbot = Session(record), Intents(), qtbot
        self.asked: list[object] = []
        self.intents.set_sampling.connect(self._on_sampling)
        self.intents.set_system_prompt.connect(self._on_prompt)
        host = QWidget()
        qtbot.addWidget(host)
        self.host = host
        self.panel = ChatSettings(self.session, self.intents, host)
        self.panel.load()
        self.panel.show()

    def _on_sampling(self, session_id: str, sampling: object) -> None:
        assert session_id == "s"
        self.asked.append(sampling)
        self.session.set_record(sampling=sampling)

    def _on_prompt(self, session_id: str, text: str) -> None:
        assert session_id == "s"
        self.asked.append(text)
        self.session.set_record(system_prompt=text)

    def type(self, name: str, text: str, end: Qt.Key = Qt.Key.Key_Return) -> None:
        edit = self.panel.edit_of(name)
        edit.setFocus()
        edit.selectAll()
        if text:
            self.qtbot.keyClicks(edit, text)
        else:
            self.qtbot.keyClick(edit, Qt.Key.Key_Delete)
        self.qtbot.keyClick(edit, end)

    def paste(self, text: str) -> None:
        data = QMimeData()
        data.setText(text)
        self.panel.prompt.insertFromMimeData(data)


@pytest.fixture
def sheet(qtbot) -> Sheet:
    return Sheet(qtbot)


def test_it_shows_what_the_chat_has(qtbot) -> None:
    sampling = Sampling(temperature=0.35, top_k=0, top_p=1.0, seed=2**63 - 1, max_tokens=12)
    sheet = Sheet(qtbot, "Be brief.", sampling)
    assert sheet.panel.prompt.toPlainText() == "Be brief."
    shown = {field.name: sheet.panel.edit_of(field.name).text() for field in FIELDS}
    assert shown == {
        "temperature": "0.35", "top_k": "0", "top_p": "1", "min_p": "0",
        "seed": "9223372036854775807", "max_tokens": "12",
    }  # fmt: skip
    sheet.panel.hide()
    assert sheet.asked == []  # to look is not to change


def test_enter_asks_for_a_value_at_once(sheet: Sheet) -> None:
    sheet.type("temperature", "1.25")
    assert sheet.asked == [Sampling(temperature=1.25)]
    sheet.type("temperature", "1.25")
    assert len(sheet.asked) == 1  # the same again is no change


def test_a_value_is_kept_when_the_field_is_left_with_tab(sheet: Sheet) -> None:
    sheet.type("top_k", "7", Qt.Key.Key_Tab)
    assert sheet.asked == [Sampling(top_k=7)]


def test_a_comma_is_a_decimal_point_and_nothing_is_nothing(sheet: Sheet) -> None:
    sheet.type("min_p", "0,05")
    sheet.type("seed", "5")
    sheet.type("seed", "")
    assert sheet.asked == [
        Sampling(min_p=0.05), Sampling(min_p=0.05, seed=5), Sampling(min_p=0.05),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("temperature", "warm", "Temperature: a number from 0 to 100."),
        ("top_k", "1.5", "Top-k: a whole number from 0 up."),
        ("top_p", "2", "Top-p: a number from 0 to 1."),
        ("seed", "-1", "Seed: a whole number from 0 to 9.22337e+18, or nothing."),
        ("max_tokens", "0", "Max tokens: a whole number from 1 up, or nothing."),
        ("max_tokens", "9" * 5000, "Max tokens: a whole number from 1 up, or nothing."),
    ],
)
def test_a_wrong_value_is_said_in_place_and_not_asked_for(sheet, name, text, sentence) -> None:
    sheet.type("top_k", "9") if name != "top_k" else None
    before = list(sheet.asked)
    edit = sheet.panel.edit_of(name)
    edit.setFocus()
    edit.selectAll()
    sheet.qtbot.keyClicks(edit, text[:300])
    if len(text) > 300:
        edit.setText(text)
        sheet.panel._check()
    if name != "seed":
        assert sheet.panel.error.text() == sentence
    assert sheet.panel.error.text().startswith(sentence[:20])
    assert edit.property("state") == "error"
    sheet.qtbot.keyClick(edit, Qt.Key.Key_Return)
    assert sheet.asked == before
    sheet.type(name, "1")
    assert sheet.panel.error.text() == ""
    assert edit.property("state") == ""


def test_one_wrong_field_does_not_hold_up_the_others(sheet: Sheet) -> None:
    sheet.type("top_p", "7")
    sheet.type("top_k", "3")
    assert sheet.asked == [Sampling(top_k=3)]
    assert sheet.panel.error.text().startswith("Top-p")


def test_defaults_are_asked_for_with_one_press(qtbot) -> None:
    sheet = Sheet(qtbot, "Keep me.", Sampling(temperature=2.0, seed=3))
    defaults = next(b for b in sheet.panel.findChildren(QPushButton) if b.text() == "Defaults")
    qtbot.mouseClick(defaults, LEFT)
    assert sheet.asked == [Sampling()]
    assert sheet.panel.edit_of("seed").text() == ""
    assert sheet.panel.prompt.toPlainText() == "Keep me."


def test_the_prompt_is_kept_when_the_panel_closes(sheet: Sheet) -> None:
    sheet.qtbot.keyClicks(sheet.panel.prompt, "Answer in rhyme.")
    sheet.qtbot.keyClick(sheet.panel.prompt, Qt.Key.Key_Return)
    sheet.qtbot.keyClicks(sheet.panel.prompt, "Always.")
    sheet.panel.hide()
    assert sheet.asked == ["Answer in rhyme.\nAlways."]
    sheet.panel.load()
    sheet.panel.show()
    sheet.panel.hide()
    assert len(sheet.asked) == 1


@pytest.mark.parametrize(
    "prompt", ["one\r\ntwo", "a\u00a0b", "x\u2029y", "\ufffestart", "z" * 9000]
)
def test_a_stored_prompt_that_qt_shows_differently_is_not_changed_by_looking(qtbot, prompt) -> None:
    sheet = Sheet(qtbot, prompt)
    sheet.type("top_k", "9")
    sheet.panel.hide()
    assert sheet.asked == [Sampling(top_k=9)]
    assert sheet.session.record.system_prompt == prompt


def test_a_long_stored_prompt_can_be_removed_but_not_edited(qtbot) -> None:
    sheet = Sheet(qtbot, "word " * 40_000)
    assert sheet.panel.prompt.isReadOnly()
    assert "200 kB" in sheet.panel.prompt.placeholderText()
    assert sheet.panel.remove_button.isVisible()
    qtbot.mouseClick(sheet.panel.remove_button, LEFT)
    assert sheet.asked == [""]
    assert not sheet.panel.prompt.isReadOnly()
    assert not sheet.panel.remove_button.isVisible()
    qtbot.keyClicks(sheet.panel.prompt, "Short.")
    sheet.panel.hide()
    assert sheet.asked == ["", "Short."]


def test_a_paste_that_is_too_long_is_refused_with_a_sentence(sheet: Sheet) -> None:
    sheet.paste("y" * 50_000)
    assert sheet.panel.prompt.toPlainText() == ""
    assert "too long" in sheet.panel.error.text()
    sheet.paste("fine\nlines")
    assert sheet.panel.prompt.toPlainText() == "fine\nlines"
    for _ in range(30):
        sheet.paste("a line of words\n" * 60)
    assert len(sheet.panel.prompt.toPlainText()) <= 20_000


def test_it_opens_ready_to_type_and_tab_leaves_the_prompt(sheet: Sheet) -> None:
    assert sheet.panel.first_field is sheet.panel.prompt
    sheet.qtbot.keyClick(sheet.panel.prompt, Qt.Key.Key_Tab)
    assert sheet.panel.prompt.toPlainText() == ""


def test_every_field_has_a_name_for_screen_readers(sheet: Sheet) -> None:
    names = [sheet.panel.edit_of(field.name).accessibleName() for field in FIELDS]
    assert names == ["Temperature", "Top-k", "Top-p", "Min-p", "Seed", "Max tokens"]
    assert sheet.panel.prompt.accessibleName() == "System prompt"
