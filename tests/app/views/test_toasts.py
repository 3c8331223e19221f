"""Toasts: they stack above the composer, go by themselves, and errors wait for the user."""

from __future__ import annotations

import itertools

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QToolButton, QWidget

from app.state.intents import Intents
from app.state.status import AppStatus
from app.views.toasts import GAP, MOST, SHOWN_MS, Toast, Toasts

LEFT = Qt.MouseButton.LeftButton


class Plate:
    """A chat column with toasts on it."""

    def __init__(self, qtbot) -> None:
        self.status, self.intents = AppStatus(), Intents()
        self.host = QWidget()
        qtbot.addWidget(self.host)
        self.host.resize(700, 600)
        self.toasts = Toasts(self.status, self.intents, self.host)
        self.host.show()

    @property
    def shown(self) -> list[Toast]:
        return self.toasts.shown

    def words(self) -> list[str]:
        return [toast.accessibleName() for toast in self.shown]


@pytest.fixture
def plate(qtbot) -> Plate:
    return Plate(qtbot)


def cross_of(toast: Toast) -> QToolButton:
    return next(b for b in toast.findChildren(QToolButton) if "Close" in b.accessibleName())


def test_the_newest_stands_lowest_and_none_covers_another(plate: Plate) -> None:
    plate.toasts.arrange(100)
    for text in ("first", "second", "third"):
        plate.status.toast.emit(text, "")
    assert plate.words() == ["first", "second", "third"]
    boxes = [toast.geometry() for toast in plate.shown]
    assert boxes[2].y() + boxes[2].height() == 500  # 100 px above the host's foot
    for upper, lower in itertools.pairwise(boxes):
        assert upper.y() + upper.height() + GAP == lower.y()
    middles = {(box.left() + box.right()) // 2 for box in boxes}
    assert all(abs(middle - 350) <= 1 for middle in middles)


def test_a_notice_is_quiet_can_be_closed_and_shows_its_whole_sentence(plate: Plate, qtbot) -> None:
    plate.status.notice.emit("Memory ran short in a step: 2 replies were paused. " * 3)
    (toast,) = plate.shown
    assert not toast.is_error
    words = max(toast.findChildren(QLabel), key=lambda label: label.width())
    qtbot.waitUntil(lambda: words.height() >= words.heightForWidth(words.width()))
    qtbot.mouseClick(cross_of(toast), LEFT)
    assert plate.shown == []


def test_a_toast_goes_by_itself_and_an_error_does_not(plate: Plate, qtbot) -> None:
    plate.status.error.emit("The disk is full.")
    plate.status.toast.emit("Exported.", "")
    error, line = plate.shown
    assert line._timer.interval() == SHOWN_MS
    line._timer.start(1)
    qtbot.waitUntil(lambda: plate.words() == ["The disk is full."])
    assert not error._timer.isActive()
    assert error.isVisible()
    qtbot.mouseClick(cross_of(error), LEFT)
    assert plate.shown == []
    assert not error.isVisible()


def test_what_remains_moves_down_when_one_is_closed(plate: Plate, qtbot) -> None:
    for text in ("first", "second"):
        plate.status.toast.emit(text, "")
    foot = plate.shown[1].geometry().bottom()
    qtbot.mouseClick(cross_of(plate.shown[1]), LEFT)
    assert plate.words() == ["first"]
    assert plate.shown[0].geometry().bottom() == foot


@pytest.mark.parametrize("key", [None, Qt.Key.Key_Space])
def test_undo_asks_once_and_takes_the_toast_away(plate: Plate, qtbot, key) -> None:
    asked: list[int] = []
    plate.intents.undo_delete.connect(lambda: asked.append(1))
    plate.status.toast.emit("“Chat” was deleted.", "Undo")
    button = plate.shown[0].undo_button
    assert button.text() == "Undo"
    if key is None:
        qtbot.mouseClick(button, LEFT)
    else:
        qtbot.keyClick(button, key)
    assert asked == [1]
    assert plate.shown == []


def test_without_undo_there_is_no_button_for_it(plate: Plate) -> None:
    plate.status.toast.emit("Copied.", "")
    assert not hasattr(plate.shown[0], "undo_button")


def test_there_are_never_too_many_and_errors_stay_longest(plate: Plate) -> None:
    plate.status.error.emit("one error")
    for number in range(MOST + 3):
        plate.status.toast.emit(f"line {number}", "")
    assert len(plate.shown) == MOST
    assert plate.words()[0] == "one error"
    assert plate.words()[-1] == f"line {MOST + 2}"
    for number in range(MOST):
        plate.status.error.emit(f"error {number}")
    assert plate.words() == [f"error {number}" for number in range(MOST)]


def test_words_are_shown_as_they_are_and_a_long_text_gets_higher(plate: Plate) -> None:
    plate.status.error.emit("<b>x.gguf</b> & more")
    label = next(one for one in plate.shown[0].findChildren(QLabel) if one.text())
    assert label.textFormat() == Qt.TextFormat.PlainText
    short = plate.shown[0].height()
    plate.status.error.emit("a sentence that goes on " * 24)
    assert plate.shown[1].height() > short
    plate.host.resize(360, 600)
    plate.toasts.arrange(24)
    for toast in plate.shown:
        assert plate.host.rect().contains(toast.geometry())
