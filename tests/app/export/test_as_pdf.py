"""The PDF is made from the record on any thread, holds every word, and reads no file."""

from __future__ import annotations

import gc
import re
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import shiboken6
from PySide6.QtCore import QBuffer, QEventLoop
from PySide6.QtGui import QPdfWriter, QTextDocument

from app.export import as_pdf
from app.export.as_pdf import to_pdf
from app.records import ReplyRecord, SessionRecord, TurnRecord
from app.render.theme import load_fonts

pytestmark = pytest.mark.usefixtures("qapp")


def num_pages(content: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", content))


def drawing(content: bytes) -> bytes:
    """All streams of the file, unpacked: what its pages draw, and its fonts."""
    parts = []
    for match in re.finditer(rb"stream\r?\n(.*?)\r?\nendstream", content, re.DOTALL):
        try:
            parts.append(zlib.decompress(match[1]))
        except zlib.error:
            parts.append(match[1])
    return b"\n".join(parts)


def is_whole(content: bytes) -> bool:
    return (
        content.startswith(b"%PDF-1.")
        and content.rstrip().endswith(b"%%EOF")
        and b"startxref" in content
        and num_pages(content) == int(re.findall(rb"/Count (\d+)", content)[0])
    )


@pytest.fixture
def printed(monkeypatch) -> Iterator[list[tuple[str, threading.Thread]]]:
    """The text of each document at the moment it was printed, and the thread that did it. The
    text and not the picture: a bare machine has few fonts."""
    found: list[tuple[str, threading.Thread]] = []

    class Recorded(as_pdf._Document):
        def print_(self, printer: QPdfWriter) -> None:
            found.append((self.toPlainText(), threading.current_thread()))
            super().print_(printer)

    monkeypatch.setattr(as_pdf, "_Document", Recorded)
    return found


def test_it_is_a_pdf_with_something_in_it(chat) -> None:
    empty, small = to_pdf(chat(title="")), to_pdf(chat(("Why?", "Because **so**.\n\n`x`")))
    assert is_whole(empty)
    assert is_whole(small)
    assert num_pages(small) == 1
    assert len(small) > 4000
    assert len(small) > len(empty)
    assert drawing(small).count(b" Tj") + drawing(small).count(b" TJ") > 3, "text, not a picture"


def test_it_holds_every_word_in_order(chat, printed) -> None:
    session = chat(
        (
            "First <b>question</b> & more\n  indented\n\n\n    twice",
            "# Head\n\n- one\n- two *three*",
        ),
        ("Second", "```py\ndef f():\n\treturn 1 < 2\n\n\n# end\n```\n\n|a|b|\n|-|-|\n|1|2|"),
        ("Third", None),
        title="Title & <i>more</i>",
        system_prompt="Be <brief>.",
    )
    assert is_whole(to_pdf(session))
    text = printed[0][0].replace("\u00a0", " ")
    wanted = [
        "Title & <i>more</i>", "3 messages", "Be <brief>.", "First <b>question</b> & more",
        "\n  indented\n", "\n    twice\n", "Head", "one", "two three", "Small-1B", "Second",
        "def f():\n", "return 1 < 2\n", "# end", "a\n", "b\n", "1\n", "2\n", "Third",
    ]  # fmt: skip
    places = [text.find(words) for words in wanted]
    assert -1 not in places, dict(zip(wanted, places, strict=True))
    position = 0
    for words in wanted:
        position = text.find(words, position)
        assert position >= 0, f"{words!r} is out of its place"


def test_code_keeps_its_colours(chat) -> None:
    plain, coloured = (
        drawing(to_pdf(chat(("q", f"```{language}\nreturn 'x'\n```")))) for language in ("", "py")
    )
    colours = [set(re.findall(rb"[\d.]+ [\d.]+ [\d.]+ scn?", one)) for one in (plain, coloured)]
    assert len(colours[1]) > len(colours[0])


@pytest.mark.parametrize("num_lines", [60, 999, 1000, 1001])
def test_a_long_message_goes_on_over_pages(chat, printed, num_lines: int) -> None:
    """500 lines are one box; none is lost where boxes or pages meet."""
    text = "\n".join(f"line-{number}." for number in range(num_lines))
    content = to_pdf(chat((text, None)))
    assert is_whole(content)
    assert num_lines // 70 < num_pages(content) <= num_lines // 40 + 2
    assert [word for word in printed[0][0].split() if word.startswith("line-")] == text.split()


def test_a_long_chat_has_several_pages(chat) -> None:
    pairs = [(f"Question {number}?", "An answer in a few words.\n\n" * 8) for number in range(30)]
    pages = [num_pages(to_pdf(chat(*pairs[:count]))) for count in (1, 10, 30)]
    assert pages[0] == 1
    assert pages[0] < pages[1] < pages[2]


def test_worker_threads_make_it(chat, printed) -> None:
    """As the application does: the thread that writes files is not the one of the window."""
    session = chat(("q", "An answer.\n\n" * 400), ("second", "```py\nx = 1\n```"))
    here = to_pdf(session)
    with ThreadPoolExecutor(2) as pool:
        there = list(pool.map(to_pdf, [session] * 4))
    assert all(is_whole(content) for content in there)
    assert {num_pages(content) for content in there} == {num_pages(here)}
    assert all(thread is not threading.main_thread() for _, thread in printed[1:])
    assert len({text for text, _ in printed}) == 1


def test_nothing_of_qt_outlives_the_call(chat) -> None:
    """A document or writer that died later, on another thread, would take the process with it."""

    def alive() -> list[object]:
        kinds = QTextDocument | QPdfWriter | QBuffer | QEventLoop
        found = [one for one in gc.get_objects() if isinstance(one, kinds)]
        return [one for one in found if shiboken6.isValid(one)]

    before = len(alive())
    to_pdf(chat(("q", "a")))
    assert len(alive()) == before


HOSTILE = [
    "\x00\x01\x1b[31m\x7f\x85", "\ud800 \udfff", "\ufffe\uffff\ufeff", "\ufdd0\ufdd1\ufffc",
    "\u2028\u2029", "\u202e\u2066abc", "e" + "\u0301" * 3000, "👩‍👩‍👧🏽" * 50, "שלום العربية",
    "\r\n\r\t\x0b\x0c",
    "</td></tr></table><script>x</script>", "<img src='/etc/hostname'><style>*{}</style>",
    "&nbsp;&#0;", "> " * 60 + "x", "- " * 40 + "x",
    "|a" * 200 + "|\n" + "|-" * 200 + "|\n" + "|b" * 200 + "|",
    "```\n", "", " ", "\n" * 300,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_odd_text_makes_a_pdf_all_the_same(chat, text: str) -> None:
    session = chat((text, text), title=text, system_prompt=text)
    reply = replace(session.turns[0].replies[0], model=text, error=text, state="failed")
    turns = (replace(session.turns[0], replies=(reply,)),)
    assert is_whole(to_pdf(replace(session, turns=turns)))


@pytest.mark.parametrize("levels", [5, 20, 24, 40])
@pytest.mark.parametrize("mark", ["> ", "- "])
def test_what_is_nested_deep_stays_on_the_page(chat, printed, mark: str, levels: int) -> None:
    """Qt gives each level 40 pixels: beyond some 27 they would lie outside of the paper."""
    content = to_pdf(chat(("q", mark * levels + "deep")))
    assert "deep" in printed[0][0]
    assert num_pages(content) == 1


def test_no_file_or_address_named_in_a_message_is_opened(chat, tmp_path: Path, monkeypatch) -> None:
    asked: list[object] = []

    class Recorded(as_pdf._Document):
        def loadResource(self, kind: int, name: object) -> object:
            asked.append(name)
            return super().loadResource(kind, name)

    monkeypatch.setattr(as_pdf, "_Document", Recorded)
    picture = tmp_path / "p.png"
    picture.write_bytes(b"\x89PNG")
    text = f"![a]({picture.as_uri()}) ![b](http://x/y.png) <img src='{picture}'> ![c]({picture})"
    content = to_pdf(chat((text, text), title=text, system_prompt=text))
    assert is_whole(content)
    assert asked == []
    assert b"/Subtype /Image" not in content


@pytest.mark.parametrize(
    "text",
    ["z" * 400_000, "word " * 80_000, "a b\n" * 20_000],
    ids=["one word", "one line", "lines"],
)
def test_a_huge_message_takes_seconds_not_minutes(chat, text: str) -> None:
    """As one paragraph in one box these took 10 to 20 s, with the square of their length."""
    started_s = time.perf_counter()
    assert num_pages(to_pdf(chat((text, None)))) > 20
    assert time.perf_counter() - started_s < 15


def test_a_chat_without_messages(printed) -> None:
    assert is_whole(to_pdf(SessionRecord("s", "Nothing yet", 0, 0)))
    assert printed[0][0].split("\n")[0] == "Nothing yet"


def test_text_copied_out_of_the_page_is_text():
    """Glyphs that stand for others have no character, and readers made control characters."""
    load_fonts()
    text = "2026-11-30 08:25 A-B\n\n```python\n__init__ -> != ::\n```\n"
    reply = ReplyRecord("r", text, "complete")
    turn = TurnRecord("t", "A-B 10:20", 0, (reply,))
    content = drawing(to_pdf(SessionRecord("s", "T-S 1:2", 0, 0, turns=(turn,))))
    characters = {
        int(code, 16)
        for line in re.findall(rb"\[((?:<[0-9A-F]{4}> )+)\]", content)
        for code in re.findall(rb"[0-9A-F]{4}", line)
    }
    assert set(map(ord, "-:_>!")) < characters
    # Qt names the glyph of the space after the tab, which has the same; readers show a space.
    assert min(characters - {ord("\t")}) > ord(" ") - 1
