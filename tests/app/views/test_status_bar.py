"""The status line: model, device, load and pool in words, and what its parts open."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtCore import Qt

from app.state.intents import Intents
from app.state.pool import PoolModel
from app.state.status import AppStatus
from app.views.status_bar import StatusLine, in_use_words
from engine.messages import NO_OWNER, ModelInfo, PoolSnapshot

LEFT = Qt.MouseButton.LeftButton
MODEL = ModelInfo(
    "Small", "/models/small.gguf", "llama", 2048, 134_500_000, "cpu", "CPU, 2 cores", "cpu",
    "fast", "fast", "4-bit", 98_000_000, 8, 16, 368_640, True, "1",
)  # fmt: skip


class Foot:
    """A status line on its two models."""

    def __init__(self, qtbot, width: int = 1000) -> None:
        self.status, self.pool = AppStatus(), PoolModel()
        self.intents = Intents()
        self.line = StatusLine(self.status, self.pool, self.intents)
        qtbot.addWidget(self.line)
        self.line.resize(width, self.line.height())
        self.line.show()

    def show_blocks(self, *states: int) -> None:
        owners = b"".join((1 if s else NO_OWNER).to_bytes(2, "little") for s in states)
        num = len(states)
        self.pool.set_snapshot(
            PoolSnapshot(num, 16, 1 << 20, bytes(states), owners, bytes(num), 0, 0.0)
        )


@pytest.fixture
def foot(qtbot) -> Foot:
    return Foot(qtbot)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"phase": "none"}, "No model"),
        ({"phase": "fetching", "starter_name": "Starter"}, "Fetching Starter"),
        ({"phase": "fetching", "starter_name": "Starter", "fraction": 0.4}, "Fetching Starter 40%"),
        ({"phase": "loading"}, "Loading"),
        ({"phase": "loading", "fraction": 0.996}, "Loading 100%"),
        ({"phase": "ready", "model": MODEL}, "Small, 4-bit, fast"),
        ({"phase": "ready", "model": replace(MODEL, storage="")}, "Small, fast"),
        ({"phase": "ready", "model": replace(MODEL, name="Salt & Co")}, "Salt && Co, 4-bit, fast"),
        ({"phase": "failed", "model": MODEL}, "No model"),
        ({"phase": "stopped", "model": MODEL}, "Engine stopped"),
    ],
)
def test_the_model_in_words(foot: Foot, changes, words) -> None:
    foot.status.update(**changes)
    assert foot.line.model.text().strip() == words


def test_device_and_load_are_of_a_model_that_is_there(foot: Foot) -> None:
    assert (foot.line.device.isVisible(), foot.line.load.text()) == (False, "")
    foot.status.update(phase="ready", model=MODEL)
    assert foot.line.device.isVisible()
    assert (foot.line.device.text(), foot.line.load.text()) == ("CPU, 2 cores", "Idle")
    assert not foot.line.speed.isVisible()
    foot.status.update(num_generating=3, tokens_per_s=1234.6)
    assert (foot.line.load.text(), foot.line.speed.text()) == ("3 generating", "1,235 tok/s")
    assert foot.line.speed.isVisible()
    foot.status.update(phase="stopped", num_generating=0, message="Out of memory.")
    assert (foot.line.device.isVisible(), foot.line.load.text()) == (False, "")
    assert foot.line.model.toolTip() == "Out of memory."


def test_the_tip_of_the_model_is_its_file_and_never_html(foot: Foot) -> None:
    foot.status.update(phase="ready", model=MODEL)
    assert foot.line.model.toolTip() == "/models/small.gguf"
    foot.status.update(model=replace(MODEL, file="/m/<img src='x.png'>.gguf"))
    assert "<img" not in foot.line.model.toolTip()


def test_the_pool_is_shown_while_there_is_one(foot: Foot) -> None:
    assert not foot.line.gauge.isVisible()
    assert not foot.line.pool.isVisible()
    foot.show_blocks(0, 1, 2, 2, 3, 0, 0, 0)  # cached blocks are not in use
    assert foot.line.gauge.isVisible()
    assert foot.line.gauge.fraction == pytest.approx(3 / 8)
    assert foot.line.pool.text() == "3.00 of 8.00 MiB in use"
    assert foot.line.pool.toolTip() == "3 of 8 blocks in use"
    foot.pool.set_snapshot(None)
    assert not foot.line.gauge.isVisible()
    assert not foot.line.pool.isVisible()


@pytest.mark.parametrize(
    ("used", "total", "words"),
    [
        (3 << 29, 9 << 30, "1.50 of 9.00 GiB in use"),
        (5 << 20, 9 << 30, "5.00 MiB of 9.00 GiB in use"),
        (0, 9 << 30, "0 of 9.00 GiB in use"),
    ],
)
def test_one_unit_when_both_have_the_same(used, total, words) -> None:
    assert in_use_words(used, total) == words


@pytest.mark.parametrize("key", [None, Qt.Key.Key_Space])
def test_each_part_opens_its_place(foot: Foot, qtbot, key) -> None:
    foot.show_blocks(2, 0)
    for part, signal in (
        (foot.line.model, foot.line.model_wanted),
        (foot.line.pool, foot.line.panel_wanted),
    ):
        with qtbot.waitSignal(signal):
            if key is None:
                qtbot.mouseClick(part, LEFT)
            else:
                qtbot.keyClick(part, key)


@pytest.mark.parametrize("key", [None, Qt.Key.Key_Space])
@pytest.mark.parametrize(
    ("phase", "intent", "words"),
    [
        ("loading", "cancel_load", "Cancel loading"),
        ("fetching", "cancel_starter", "Cancel download"),
    ],
)
def test_what_is_under_way_can_be_cancelled(foot: Foot, qtbot, phase, intent, words, key) -> None:
    button = foot.line.cancel
    assert not button.isVisible()
    foot.status.update(phase=phase)
    assert button.isVisible()
    assert (button.accessibleName(), button.toolTip()) == (words, words)
    assert button.focusPolicy() & Qt.FocusPolicy.TabFocus
    with qtbot.waitSignal(getattr(foot.intents, intent)):
        if key is None:
            qtbot.mouseClick(button, LEFT)
        else:
            qtbot.keyClick(button, key)
    foot.status.update(phase="none")
    assert not button.isVisible()


@pytest.mark.parametrize(("width", "has_device"), [(640, False), (759, False), (760, True)])
def test_the_device_gives_way_in_a_narrow_window(qtbot, width, has_device) -> None:
    foot = Foot(qtbot, width)
    foot.status.update(phase="ready", model=MODEL)
    foot.line.resize(width, foot.line.height())
    assert foot.line.device.isVisible() == has_device
