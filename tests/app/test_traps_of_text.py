"""Guards for the traps of text, pictures and colours (6, 7, 8 and 13), through the real widgets.

Each fails when its trap is stepped on; where Qt itself steps on it, the test shows that first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QBuffer, QMimeData, Qt, QUrl
from PySide6.QtGui import QColor, QImage, QPalette, QPdfWriter, QTextDocument
from PySide6.QtWidgets import QApplication, QLineEdit, QMenu, QPlainTextEdit, QTextEdit, QWidget

from app.export import as_pdf
from app.export.write import write_export
from app.records import ReplyRecord, SessionRecord, TurnRecord
from app.render import markdown
from app.render.theme import ThemeManager, palette_of, theme
from app.state.intents import Intents
from app.state.session import Session, Sessions
from app.state.status import AppStatus
from app.views.chat_page import ChatPage
from app.views.chat_settings import ChatSettings
from app.views.session_list import SessionListView
from app.views.tab_bar import ChatTabs
from app.views.transcript import TranscriptView
from app.views.transcript_items import Item
from app.views.welcome import WelcomePage

VIEWS = Path(__file__).resolve().parents[2] / "app/views"


@pytest.fixture
def themes(qapp: QApplication) -> Iterator[ThemeManager]:
    sheet, palette, font = qapp.styleSheet(), QPalette(qapp.palette()), qapp.font()
    manager = ThemeManager()
    manager.set_choice("light")
    yield manager
    manager.set_choice("light")
    qapp.setStyleSheet(sheet)
    qapp.setPalette(palette)
    qapp.setFont(font)


def chat_with(reply: str, state: str = "complete", user_text: str = "go") -> Session:
    record = ReplyRecord("r", reply, state)  # type: ignore[arg-type]
    turn = TurnRecord("t", user_text, 0, (record,))
    return Session(SessionRecord("s", "Chat", 0, 0, turns=(turn,)))


def view_of(qtbot, session: Session) -> TranscriptView:
    view = TranscriptView(session, Intents())
    qtbot.addWidget(view)
    view.resize(784, 600)
    view.show()
    qtbot.waitExposed(view)
    return view


def shown_words(view: TranscriptView) -> str:
    view.select_all()
    return view.selected_text()


# ---- 6: the cost of a token does not grow with the answer --------------------------------------

ANSWER = (
    "Some *words* and `code` here.\n\n- one\n- two\n\n```py\ndef f():\n    return 1\n```\n\n"
) * 104


def test_trap_06_a_token_touches_the_live_tail_only(qtbot, themes, monkeypatch) -> None:
    """Counted, not timed: characters parsed, items laid out, items painted, for each token."""
    parsed, built, painted = [0], [0], [0]
    parse, ensure = markdown._parse_with_lines, Item.ensure

    def counted_parse(text: str) -> object:
        parsed[0] += len(text)
        return parse(text)

    def counted_ensure(item: Item, width: int) -> bool:
        built[0] += not item.is_fresh(width)
        return ensure(item, width)

    session = chat_with("", "streaming")
    session.set_status("running")
    view = view_of(qtbot, session)
    select = view._selected_in
    monkeypatch.setattr(markdown, "_parse_with_lines", counted_parse)
    monkeypatch.setattr(Item, "ensure", counted_ensure)
    monkeypatch.setattr(view, "_selected_in", lambda *args: painted.append(1) or select(*args))
    costs: list[tuple[int, int, int]] = []
    for at in range(0, 8000, 4):  # 2,000 tokens
        parsed[0], built[0] = 0, 0
        painted.clear()
        session.append_text(0, ANSWER[at : at + 4])
        view._refresh()
        if at % 400 == 0:
            view.grab()
        costs.append((parsed[0], built[0], len(painted)))
    early, late = costs[200:600], costs[1600:2000]
    for part, most in ((0, 400), (1, 4), (2, 60)):
        assert max(cost[part] for cost in late) <= most
        assert max(cost[part] for cost in late) <= 1.2 * max(cost[part] for cost in early) + 2
    assert sum(cost[0] for cost in costs) > 8000  # the count sees the parser at work
    assert sum(cost[1] for cost in costs) > 300
    assert max(cost[2] for cost in costs) > 5
    assert len(view.document.items) > 300
    assert len(session.record.turns[0].replies[0].text) == 8000


# ---- 7: HTML, images and odd characters --------------------------------------------------------

MAGENTA = 0xFFFF00FF


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """A picture on the disk that nobody may load: 90 by 90 px of one loud colour."""
    image = QImage(90, 90, QImage.Format.Format_RGB32)
    image.fill(QColor(MAGENTA))
    path = tmp_path / "private.png"
    assert image.save(str(path))
    return path


def hostile(path: Path) -> str:
    url = QUrl.fromLocalFile(str(path)).toString()
    return (
        f"![a]({url}) ![b]({path}) ![c](https://example.org/x.png)\n\n"
        f'<img src="{path}"> <img src="{url}">\n\n<smirk> hello\n\n'
        f"| t |\n|---|\n| ![d]({url}) |\n\n- ![e]({path})\n\n> <img src='{url}'>\n"
    )


def has_magenta(image: QImage) -> bool:
    return any(
        image.pixel(x, y) & 0xFFFFFFFF == MAGENTA
        for x in range(0, image.width(), 8)
        for y in range(0, image.height(), 8)
    )


def test_trap_07_no_message_loads_a_picture_and_all_of_it_is_shown(qtbot, themes, picture) -> None:
    text = hostile(picture)
    qt_edit = QTextEdit()
    qtbot.addWidget(qt_edit)
    qt_edit.resize(784, 600)
    qt_edit.setHtml(f'<img src="{picture}">')
    assert has_magenta(qt_edit.grab().toImage())  # what must not happen
    view = view_of(qtbot, chat_with(text, user_text=text))
    assert not has_magenta(view.grab().toImage())
    words = shown_words(view)
    assert "<smirk> hello" in words
    assert words.count(f'<img src="{picture}">') == 2  # as typed, and as answered


def test_trap_07_exports_hold_no_picture_and_keep_the_text(themes, picture, tmp_path) -> None:
    record = chat_with(hostile(picture), user_text=hostile(picture)).record
    names = ("html", "pdf", "md")
    files = {name: write_export(record, name, tmp_path / f"x.{name}") for name in names}
    html = files["html"].read_text(encoding="utf-8")
    assert "<img" not in html
    assert "&lt;smirk&gt; hello" in html
    assert b"/Subtype /Image" in pdf_with(picture, QTextDocument())  # what must not happen
    assert b"/Subtype /Image" not in pdf_with(picture, as_pdf._Document())
    assert b"/Subtype /Image" not in files["pdf"].read_bytes()
    assert hostile(picture).strip() in files["md"].read_text(encoding="utf-8")


def pdf_with(picture: Path, document: QTextDocument) -> bytes:
    """What a document does with an image that its HTML names."""
    buffer = QBuffer()
    buffer.open(QBuffer.OpenModeFlag.WriteOnly)
    writer = QPdfWriter(buffer)
    document.setHtml(f'<img src="{picture}">')
    document.print_(writer)
    del writer
    return bytes(buffer.data().data())


@pytest.mark.parametrize("start", ["\ufffe", "\ufeff", "\uffff", "\ud800"])
def test_trap_07_a_chunk_that_starts_oddly_survives_the_way_to_the_screen(
    qtbot, themes, start
) -> None:
    session = chat_with("", "streaming")
    session.set_status("running")
    view = view_of(qtbot, session)
    for chunk in ("one ", f"{start}two ", "three"):
        session.append_text(0, chunk)
    assert session.record.turns[0].replies[0].text == f"one {start}two three"
    qtbot.waitUntil(lambda: shown_words(view).endswith("three"))
    assert re.fullmatch("go\n\none [\ufffd\ufeff]?two three", shown_words(view))


def test_trap_07_a_title_is_not_html_in_a_tool_tip(qtbot, themes, picture) -> None:
    title = f'<img src="{picture}"> & co'
    sessions, intents = Sessions(), Intents()
    sessions.insert(Session(SessionRecord("s", title, 0, 0)))
    tabs = ChatTabs(sessions, intents)
    qtbot.addWidget(tabs)
    sessions.open_tab("s")
    document = QTextDocument()
    document.setHtml(tabs.tabToolTip(0))
    assert document.toPlainText() == title
    assert "<img" not in tabs.tabToolTip(0)


# ---- 8: a 200 kB line without spaces -----------------------------------------------------------

LONG_LINE = "x" * 200_000


def longest_laid_out(host: QWidget) -> int:
    """Longest line, in characters, that a text edit inside `host` has to lay out."""
    edits = [*host.findChildren(QTextEdit), *host.findChildren(QPlainTextEdit)]
    assert edits
    lines = [line for edit in edits for line in edit.toPlainText().split("\n")]
    return max(map(len, lines))


def paste(edit: QTextEdit | QPlainTextEdit, text: str) -> None:
    data = QMimeData()
    data.setText(text)
    edit.insertFromMimeData(data)


@pytest.mark.parametrize("piece", [200_000, 3_999, 1_000])
def test_trap_08_no_series_of_pastes_makes_a_long_line_in_the_composer(
    qtbot, themes, piece
) -> None:
    session, status, intents = Session(SessionRecord("s", "Chat", 0, 0)), AppStatus(), Intents()
    status.update(phase="ready")
    page = ChatPage(session, status, intents)
    qtbot.addWidget(page)
    page.resize(784, 700)
    page.show()
    number = -(-20_000 // piece)
    for _ in range(number):
        paste(page.composer.edit, LONG_LINE[:piece])
    assert longest_laid_out(page) <= 4000
    assert page.composer.text().count("x") == number * piece  # nothing is lost


def test_trap_08_text_between_two_halves_counts_with_them(qtbot, themes) -> None:
    page = ChatPage(Session(SessionRecord("s", "Chat", 0, 0)), AppStatus(), Intents())
    qtbot.addWidget(page)
    edit = page.composer.edit
    paste(edit, "a" * 3000)
    cursor = edit.textCursor()
    cursor.setPosition(1500)
    edit.setTextCursor(cursor)
    paste(edit, "b" * 1200 + "\n" + "c" * 1200)  # two lines of 2,700: short enough
    assert [len(line) for line in edit.toPlainText().split("\n")] == [2700, 2700]
    paste(edit, "d" * 1400)  # 4,100 with what stands around it
    assert longest_laid_out(page) == 2700
    edit.selectAll()
    paste(edit, "e" * 3999)  # replaces all: nothing stands around it
    assert edit.toPlainText() == "e" * 3999


def test_trap_08_a_system_prompt_that_came_with_an_import_is_not_laid_out(qtbot, themes) -> None:
    session = Session(SessionRecord("s", "Chat", 0, 0, system_prompt=LONG_LINE))
    host, intents = QWidget(), Intents()
    qtbot.addWidget(host)
    panel = ChatSettings(session, intents, host)
    panel.load()
    assert longest_laid_out(panel) <= 4000
    with qtbot.assertNotEmitted(intents.set_system_prompt):
        panel.save()  # and it is not taken for a change
    panel.remove_button.click()
    for _ in range(8):
        paste(panel.prompt, LONG_LINE[:3000])
    assert longest_laid_out(panel) <= 4000


def test_trap_08_every_other_field_is_one_line_or_read_only(qtbot, themes) -> None:
    """A line edit takes 200 kB in 30 ms; only text edits are dear. None but these two exist."""
    edits = {
        name
        for path in sorted(VIEWS.glob("*.py"))
        for name in re.findall(r"class (\w+)\(Q(?:Plain)?TextEdit\)", path.read_text("utf-8"))
    }
    assert edits == {"ComposerEdit", "PromptEdit"}
    status, intents = AppStatus(), Intents()
    welcome = WelcomePage(Sessions(), status, intents)
    chats = SessionListView(Sessions(), intents)
    for host in (welcome, chats):
        qtbot.addWidget(host)
        for edit in host.findChildren(QLineEdit):
            edit.setText(LONG_LINE)
        assert host.findChildren(QTextEdit) == []
    assert all(len(text) <= 4000 for text in welcome.texts())


# ---- 13: the system only chooses between our two palettes --------------------------------------


def test_trap_13_both_themes_are_whole_on_a_platform_that_knows_no_dark(
    qapp, qtbot, themes
) -> None:
    assert qapp.platformName() == "offscreen"
    host = QWidget()
    qtbot.addWidget(host)
    edit, menu = QLineEdit("words", host), QMenu("menu", host)
    menu.addAction("an action")
    host.resize(200, 80)
    light: dict[str, int] = {}
    for choice in ("light", "dark"):
        themes.set_choice(choice)
        assert theme().name == choice
        wanted = palette_of(theme())
        for role in (QPalette.ColorRole.Window, QPalette.ColorRole.Base, QPalette.ColorRole.Text):
            assert qapp.palette().color(role) == wanted.color(role)
        for name, widget in (("edit", edit), ("menu", menu), ("page", host)):
            lightness = widget.grab().toImage().pixelColor(3, 3).lightness()
            assert (lightness < 90) == (choice == "dark"), (name, choice, lightness)
            light[f"{name} {choice}"] = lightness
    assert len(light) == 6


def test_trap_13_the_system_chooses_between_our_two(qapp, themes, monkeypatch) -> None:
    for scheme, name in ((Qt.ColorScheme.Dark, "dark"), (Qt.ColorScheme.Light, "light")):
        monkeypatch.setattr("app.render.theme.QGuiApplication.styleHints", told_hints(scheme))
        themes.set_choice("system")
        assert theme().name == name
        assert qapp.palette().window().color() == theme().color("background.chrome")


def told_hints(scheme: Qt.ColorScheme) -> Callable[[], object]:
    class Accessibility:
        def contrastPreference(self) -> Qt.ContrastPreference:
            return Qt.ContrastPreference.NoPreference

    class Hints:
        def colorScheme(self) -> Qt.ColorScheme:
            return scheme

        def accessibility(self) -> Accessibility:
            return Accessibility()

    return staticmethod(Hints)


def test_trap_13_texts_without_a_font_are_texts_all_the_same(qtbot, themes) -> None:
    """A bare machine has no glyphs for these: the text is tested, not the picture."""
    text = "漢字かな 한글 😀👩‍👩‍👧 עברית"
    view = view_of(qtbot, chat_with(text, user_text=text))
    view.grab()
    assert shown_words(view) == f"{text}\n\n{text}"
