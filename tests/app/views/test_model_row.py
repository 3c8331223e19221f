"""The model's row on the welcome page: what each phase says and which buttons it offers."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget

from app.state.intents import Intents
from app.state.status import AppStatus
from app.views.model_row import ModelRow
from engine.messages import ModelInfo

LEFT = Qt.MouseButton.LeftButton
LOADED = ModelInfo(
    "Small", "/models/small.gguf", "llama", 2048, 1_345_500_000, "cpu", "CPU", "cpu", "fast",
    "fast", "4-bit", 98_000_000, 8, 16, 368_640, True, "1",
)  # fmt: skip


class Shop:
    """The row, its models and a host as wide as the page."""

    def __init__(self, qtbot) -> None:
        self.status, self.intents = AppStatus(), Intents()
        self.host = QWidget()
        qtbot.addWidget(self.host)
        self.host.resize(560, 120)
        self.row = ModelRow(self.status, self.intents, self.host)
        self.row.resize(560, 100)
        self.host.show()
        self.status.update(starter_name="Starter", starter_bytes=98_000_000)

    def offers(self) -> set[str]:
        row = self.row
        buttons = {"fetch": row.fetch_button, "cancel": row.cancel_button, "open": row.open_button}
        shown = {name for name, button in buttons.items() if button.isVisible()}
        return shown | {name for name in ("bar", "reason") if getattr(row, name).isVisible()}


@pytest.fixture
def shop(qtbot) -> Shop:
    return Shop(qtbot)


@pytest.mark.parametrize(
    ("changes", "offers", "name", "note"),
    [
        ({"phase": "none"}, {"fetch", "open"}, "Starter", "starter model, 98 MB"),
        ({"phase": "none", "starter_bytes": 0}, {"fetch", "open"}, "Starter", "starter model"),
        ({"phase": "none", "starter_name": ""}, {"open"}, "No model yet", ""),
        ({"phase": "none", "message": "The download stopped."},
         {"fetch", "open", "reason"}, "Starter", "starter model, 98 MB"),
        ({"phase": "fetching", "note": "12 of 98 MB"}, {"cancel", "bar"}, "Starter", "12 of 98 MB"),
        ({"phase": "loading", "note": "Reading"},
         {"cancel", "bar"}, "Loading the model", "Reading"),
        ({"phase": "ready", "model": LOADED}, {"open"}, "Small", "1,346 M parameters"),
        ({"phase": "failed", "message": "It is no model."},
         {"fetch", "open", "reason"}, "Starter", "starter model, 98 MB"),
        ({"phase": "stopped", "model": LOADED, "message": "Out of memory."},
         {"open", "reason"}, "Small", "the engine stopped"),
    ],
)  # fmt: skip
def test_every_phase_says_what_is_and_offers_what_can_be_done(
    shop, changes, offers, name, note
) -> None:
    shop.status.update(**changes)
    assert shop.offers() == offers
    assert (shop.row.name.text(), shop.row.note.text()) == (name, note)
    if "message" in changes:
        assert shop.row.reason.text() == changes["message"]
    assert shop.row.state.isVisible() == (changes["phase"] == "ready")
    assert shop.row.property("tone") == (
        "error" if changes["phase"] in ("failed", "stopped") else ""
    )


@pytest.mark.parametrize("key", [None, Qt.Key.Key_Space])
def test_the_buttons_ask(shop: Shop, qtbot, key) -> None:
    def press(button) -> None:
        if key is None:
            qtbot.mouseClick(button, LEFT)
        else:
            qtbot.keyClick(button, key)

    shop.status.update(phase="none")
    with qtbot.waitSignal(shop.intents.get_starter):
        press(shop.row.fetch_button)
    with qtbot.waitSignal(shop.row.open_model_wanted):
        press(shop.row.open_button)
    shop.status.update(phase="fetching")
    with qtbot.waitSignal(shop.intents.cancel_starter):
        press(shop.row.cancel_button)
    assert shop.row.cancel_button.accessibleName() == "Cancel download"
    shop.status.update(phase="loading")
    with qtbot.waitSignal(shop.intents.cancel_load):
        press(shop.row.cancel_button)
    assert shop.row.cancel_button.accessibleName() == "Cancel loading"


@pytest.mark.parametrize(("fraction", "most", "value"), [(0.0, 0, -1), (0.256, 1000, 256)])
def test_the_bar_is_busy_until_the_size_is_known(shop: Shop, fraction, most, value) -> None:
    shop.status.update(phase="fetching", fraction=fraction)
    assert shop.row.bar.maximum() == most
    if most:
        assert shop.row.bar.value() == value


def test_names_and_reasons_are_text(shop: Shop) -> None:
    shop.status.update(phase="failed", starter_name="<b>S</b>", message="<i>no</i> & so")
    assert shop.row.name.text() == "<b>S</b>"
    for label in (shop.row.name, shop.row.note, shop.row.reason):
        assert label.textFormat() == Qt.TextFormat.PlainText
    shop.status.update(phase="loading", note="<img src='x.png'>")
    assert "<img" not in shop.row.note.toolTip()
