"""Tabs: they follow the model, close by cross and middle button, and are dragged to reorder."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QWidget

from app.records import SessionRecord
from app.state.intents import Intents
from app.state.session import Session, Sessions
from app.views.tab_bar import ChatTabs

LEFT, MIDDLE = Qt.MouseButton.LeftButton, Qt.MouseButton.MiddleButton


@pytest.fixture(scope="module", autouse=True)
def whole_style(look) -> None:
    """The style sheet of a manager that lives: the images of another one go with it."""
    look.set_choice("dark")
    look.set_choice("light")


class Rack:
    """A tab bar in a row of a certain width, on a model that obeys it."""

    def __init__(self, qtbot, titles: tuple[str, ...], width: int = 900) -> None:
        self.sessions, self.intents, self.qtbot = Sessions(), Intents(), qtbot
        for number, title in enumerate(titles):
            self.sessions.insert(Session(SessionRecord(f"s{number}", title, 0, 0)), number)
        self.host = QWidget()
        qtbot.addWidget(self.host)
        self.host.resize(width, 60)
        self.tabs = ChatTabs(self.sessions, self.intents, self.host)
        for number in range(len(titles)):
            self.sessions.open_tab(f"s{number}", make_current=False)
        self.sessions.set_current("s0")
        self.tabs.resize(width, self.tabs.height())
        self.host.show()
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.intents.open_chat.connect(self.opened.append)
        self.intents.open_chat.connect(self.sessions.set_current)
        self.intents.close_tab.connect(self.closed.append)
        self.intents.move_tab.connect(self.sessions.move_tab)

    def title_of(self, index: int) -> QPoint:
        box = self.tabs.tabRect(index)
        return QPoint(box.left() + 30, box.center().y())

    def cross_of(self, index: int) -> QPoint:
        return self.tabs._close_box(index).center()


@pytest.fixture
def rack(qtbot) -> Rack:
    return Rack(qtbot, ("One", "Two", "Three"))


def test_a_click_on_a_title_asks_for_the_chat_and_a_second_asks_no_more(rack: Rack, qtbot) -> None:
    with qtbot.waitSignal(rack.tabs.chosen) as chosen:
        qtbot.mouseClick(rack.tabs, LEFT, pos=rack.title_of(2))
    assert chosen.args == ["s2"]
    qtbot.mouseClick(rack.tabs, LEFT, pos=rack.title_of(2))
    assert (rack.opened, rack.closed) == (["s2"], [])


def test_changes_of_the_model_ask_for_nothing(rack: Rack) -> None:
    rack.sessions.set_current("s1")
    rack.sessions.close_tab("s1")
    rack.sessions.open_tab("s1", index=0)
    rack.sessions.move_tab("s2", 0)
    assert [rack.tabs.session_id(i) for i in range(3)] == rack.sessions.tabs == ["s2", "s1", "s0"]
    assert rack.tabs.session_id(rack.tabs.currentIndex()) == rack.sessions.current_id == "s1"
    assert (rack.opened, rack.closed) == ([], [])


def test_the_cross_closes_without_choosing(rack: Rack, qtbot) -> None:
    qtbot.mouseMove(rack.tabs, rack.title_of(1))
    qtbot.mouseClick(rack.tabs, LEFT, pos=rack.cross_of(1))
    assert (rack.opened, rack.closed) == ([], ["s1"])
    assert rack.tabs.count() == 3  # until the answer comes
    qtbot.mouseClick(rack.tabs, MIDDLE, pos=rack.title_of(2))
    assert rack.closed == ["s1", "s2"]


@pytest.mark.parametrize("button", [LEFT, MIDDLE])
def test_a_press_taken_back_elsewhere_closes_nothing(rack: Rack, qtbot, button) -> None:
    qtbot.mousePress(rack.tabs, button, pos=rack.cross_of(0))
    qtbot.mouseRelease(rack.tabs, button, pos=rack.cross_of(1))
    qtbot.mousePress(rack.tabs, button, pos=rack.cross_of(0))
    qtbot.mouseRelease(rack.tabs, button, pos=QPoint(rack.tabs.width() - 2, 10))
    assert rack.closed == []


def test_a_press_on_a_title_that_slides_under_the_pointer_closes_nothing(qtbot) -> None:
    """In a full row the chosen tab grows and the one before it shrinks: its cross moves along."""
    rack = Rack(qtbot, tuple(f"A rather long title, number {n}" for n in range(7)), width=700)
    place = rack.title_of(1)
    for x in range(rack.tabs.tabRect(1).left() + 1, rack.tabs.tabRect(1).right() - 40, 2):
        rack.sessions.set_current("s0")
        rack.opened.clear()
        place.setX(x)
        assert rack.tabs.tabAt(place) == 1
        if rack.tabs._close_box(1).contains(place):
            continue
        qtbot.mouseClick(rack.tabs, LEFT, pos=place)
        assert (x, rack.opened, rack.closed) == (x, ["s1"], [])


def test_a_drag_reorders_the_model_and_ends_with_the_release(rack: Rack, qtbot) -> None:
    start, end = rack.title_of(0), rack.title_of(2) + QPoint(40, 0)
    qtbot.mousePress(rack.tabs, LEFT, pos=start)
    for part in range(1, 11):
        point = start + (end - start) * part / 10
        qtbot.mouseMove(rack.tabs, point)
    qtbot.mouseRelease(rack.tabs, LEFT, pos=end)
    assert rack.closed == []
    assert [rack.tabs.session_id(i) for i in range(3)] == rack.sessions.tabs
    assert rack.sessions.tabs.index("s0") > 0
    qtbot.mouseClick(rack.tabs, LEFT, pos=rack.title_of(0))
    assert rack.sessions.current_id == rack.sessions.tabs[0]


def test_arrows_move_between_tabs(rack: Rack, qtbot) -> None:
    rack.tabs.setFocus()
    qtbot.keyClick(rack.tabs, Qt.Key.Key_Right)
    qtbot.keyClick(rack.tabs, Qt.Key.Key_Right)
    qtbot.keyClick(rack.tabs, Qt.Key.Key_Left)
    assert rack.opened == ["s1", "s2", "s1"]


def test_titles_follow_and_keep_their_ampersands(rack: Rack) -> None:
    session = rack.sessions.get("s1")
    width = rack.tabs.tabRect(1).width()
    session.set_record(title="Salt & pepper, oil & vinegar")
    assert rack.tabs.tabText(1) == "Salt && pepper, oil && vinegar"
    assert rack.tabs.accessibleTabName(1) == rack.tabs.tabToolTip(1) == session.title
    assert rack.tabs.tabRect(1).width() > width
    session.set_record(title="two\nlines " + "x" * 400)
    assert "\n" not in rack.tabs.tabText(1)
    assert len(rack.tabs.tabText(1)) <= 200


@pytest.mark.parametrize("num_tabs", [1, 2, 7, 40])
def test_tabs_share_the_row_and_none_is_narrower_than_it_may_be(
    qtbot, light_sizes, num_tabs
) -> None:
    least, most = light_sizes
    titles = tuple(f"A rather long title, number {n}, that goes on" for n in range(num_tabs))
    rack = Rack(qtbot, titles, width=800)
    widths = [rack.tabs.tabSizeHint(index).width() for index in range(num_tabs)]
    assert all(least <= width <= most for width in widths)
    assert widths[0] == max(widths)  # the one in front is never the one that gives way
    if num_tabs < 7:
        assert sum(widths) <= 800
    rack.tabs.grab()


@pytest.fixture
def light_sizes(look) -> tuple[float, float]:
    return look.current.size("tab_min"), look.current.size("tab_max")


def test_it_is_there_only_with_tabs(rack: Rack) -> None:
    assert rack.tabs.isVisible()
    for session_id in list(rack.sessions.tabs):
        rack.sessions.close_tab(session_id)
    assert not rack.tabs.isVisible()
    rack.sessions.open_tab("s1")
    assert rack.tabs.isVisible()


@pytest.mark.parametrize("change", ["running", "failed", "unread", "hover", "current"])
def test_states_change_the_picture(rack: Rack, qtbot, change) -> None:
    session = rack.sessions.get("s1")
    session.owner = 3
    before = rack.tabs.grab(rack.tabs.tabRect(1)).toImage()
    if change == "unread":
        session.unread = True
        session.changed.emit()
    elif change == "hover":
        qtbot.mouseMove(rack.tabs, rack.title_of(2))  # from wherever the pointer was
        qtbot.mouseMove(rack.tabs, rack.title_of(1))
    elif change == "current":
        rack.sessions.set_current("s1")
    else:
        session.set_status(change)
    assert rack.tabs.grab(rack.tabs.tabRect(1)).toImage() != before


def test_a_closed_chat_is_listened_to_no_more(rack: Rack) -> None:
    session = rack.sessions.get("s1")
    rack.sessions.close_tab("s1")
    session.set_record(title="Changed while closed")
    assert [rack.tabs.tabText(i) for i in range(2)] == ["One", "Three"]
    rack.sessions.open_tab("s1")
    assert rack.tabs.tabText(2) == "Changed while closed"
