"""The HTML page needs nothing and runs nothing: checked with a parser that forgives nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.export.as_html import style_rules, to_html
from app.export.rendered import reply_html
from app.records import ReplyRecord, SessionRecord, TurnRecord
from app.render.markdown import MAX_CHARS, MAX_INLINE_CHARS

VOID = {"meta", "br", "hr"}
ALLOWED = VOID | {
    "html", "head", "title", "style", "body", "main", "h1", "h2", "h3", "h4", "h5", "h6", "p",
    "div", "pre", "code", "span", "a", "em", "strong", "s", "ul", "ol", "li", "blockquote", "table",
    "thead", "tbody", "tr", "th", "td",
}  # fmt: skip
ATTRIBUTES = {"class", "href", "title", "style", "start", "lang", "charset", "name", "content",
              "http-equiv"}  # fmt: skip
SAFE_SCHEMES = re.compile(r"(https?:|mailto:|data:image/(png|gif|jpeg|webp);|[^:]*$|[#/?])", re.I)
HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(1)>\n\n"
    "\"><svg/onload=alert(1)>' onmouseover=alert(1) </div></main></body></style></title>\n\n"
    "[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](&#106;avascript:alert(1)) "
    "[d](vbscript:x) [e](data:text/html,<script>) <javascript:alert(1)> [f](java\tscript:x)\n\n"
    '[g](http://x "t\\" onclick=alert(1)") ![h](http://x/i.png) [![i](http://x/j.png)](http://y)\n\n'
    "[j]: javascript:alert(1)\n[j] `</code><script>` \n\n<!-- -->\n\n"
    "```<script>\n</pre><script>alert(1)</script>\n```\n\n"
    "|<b>|`|`|\n|:-|-|\n|<script>|![](javascript:x)|\n"
)


class Page(HTMLParser):
    """Elements in their order; fails on one that is not closed, or is where it may not be."""

    def __init__(self, content: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.links: list[str] = []
        self.words = {"all": "", "title": "", "style": ""}
        self.feed(content.decode("utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED
        assert {name for name, _ in attrs} <= ATTRIBUTES
        assert len({name for name, _ in attrs}) == len(attrs)
        assert not (tag == "a" and "a" in self.open), "a link within a link"
        values = dict(attrs)
        if "style" in values:
            assert re.fullmatch("text-align:(left|right|center)", values["style"] or "")
        if "href" in values:
            assert tag == "a"
            self.links.append(values["href"] or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words["all"] += data
        if self.open and self.open[-1] in self.words:
            self.words[self.open[-1]] += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError("a comment from a message")


def check(content: bytes) -> Page:
    """What is true of every page."""
    page = Page(content)
    text = content.decode()
    assert text.startswith("<!DOCTYPE html>\n<html")
    assert "default-src 'none'" in text
    assert "\x00" not in text
    assert all(SAFE_SCHEMES.match(link) for link in page.links), page.links
    style = page.words["style"]
    assert "url(" not in style
    assert "@import" not in style
    assert "http" not in style
    return page


def test_user_text_is_shown_as_it_was_typed(chat) -> None:
    content = to_html(chat((HOSTILE, None), title=HOSTILE, system_prompt=HOSTILE))
    page = check(content)
    assert page.links == []
    assert page.words["all"].count(HOSTILE) == 4  # title twice, system prompt, message
    assert page.words["title"] == HOSTILE


def test_a_hostile_reply_runs_nothing_and_loads_nothing(chat) -> None:
    page = check(to_html(chat(("q", HOSTILE))))
    assert set(page.links) == {"http://x", "http://x/i.png", "http://y"}
    for shown in ("<script>alert(1)</script><img src=x onerror=alert(1)>", "<svg/onload=alert(1)>"):
        assert shown in page.words["all"]


def test_names_and_errors_of_a_reply_are_text_too(chat) -> None:
    session = chat(("q", "a"))
    reply = replace(session.turns[0].replies[0], model="<b>M", state="failed", error="<i>no</i>.")
    page = check(to_html(replace(session, turns=(replace(session.turns[0], replies=(reply,)),))))
    assert "<b>M · <i>no</i>." in page.words["all"]


PARTS = st.sampled_from(
    ["<", ">", "&", '"', "'", "[", "](", "](http://x ", ")", "![", "*", "**", "_", "`", "```", "~~",
     "\n", "\n\n", "    ", "> ", "- ", "1. ", "# ", "|", "|-|", "\\", "<script>", "-->", "<!--",
     "x", "javascript:", "\x00", "\ud800", "&#x6a;", "http://x.y", "<http://z>", "[r]",
     "[r]: /u\n", "\t"]
)  # fmt: skip


@given(st.lists(PARTS, max_size=25).map("".join))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_text_gives_a_valid_page(text: str) -> None:
    reply = ReplyRecord("r", text, "complete", model=text)
    turn = TurnRecord("t", text, 0, (reply,))
    check(to_html(SessionRecord("s", text, 0, 0, text, turns=(turn,))))


def test_code_is_kept_to_the_letter(chat) -> None:
    code = "\n\ndef f(a):\n\treturn a < 1 and '&amp;'  \n\n\n"
    content = to_html(chat(("q", f"```python\n{code}```\n\n```\n{code}```\n\n    x\n\n\n    y\n")))
    page = check(content)
    assert page.words["all"].count(code.removesuffix("\n")) == 2
    assert "x\n\n\ny" in page.words["all"]
    assert 'class="keyword">def</span>' in content.decode()


def test_markdown_becomes_elements() -> None:
    html = reply_html("# T\n\n**b** *i* ~~s~~ `c`\n\n1. x\n\n> q\n\n|a|\n|-:|\n|1|\n\n---", str)
    for element in ("<h1>T", "<strong>b", "<em>i", "<s>s", "<code>c", "<li>x", "<td", "<hr"):
        assert element in html


@pytest.mark.parametrize(
    "text",
    [
        "> " * 40 + "deep",
        "\n".join("  " * i + "- x" for i in range(30)) + " deep",
        "- " * 50 + "deep",
        "> - " * 15 + "deep",
        ">" * 100_000 + "deep",
    ],
    ids=["quotes", "list", "one line", "both", "many"],
)
def test_nothing_is_dropped_however_deep_it_is(chat, text: str) -> None:
    """The library leaves out what is nested deeper than its limit."""
    assert "deep" in check(to_html(chat(("q", text)))).words["all"]


@pytest.mark.parametrize("levels", range(8, 26))
@pytest.mark.parametrize("mark", ["> ", "- "])
def test_nothing_is_dropped_at_the_limit(mark: str, levels: int) -> None:
    assert "deep" in reply_html(mark * levels + "deep", str)


@pytest.mark.parametrize("mark", ["![", "*a_", "[a](", "`a``"])
def test_a_very_long_paragraph_takes_no_time(mark: str) -> None:
    """Half a megabyte of `![` took the library more than a minute: it is shown as it is."""
    text = mark * (MAX_CHARS // len(mark))
    assert len(text) > MAX_INLINE_CHARS
    assert reply_html(text, str) == f"<p>{text}</p>\n"


def test_a_huge_reply_is_shown_as_it_is(chat) -> None:
    text = "\n*a* <b>\n" * (MAX_CHARS // 9 + 1)
    assert text in check(to_html(chat(("q", text)))).words["all"]


def test_unfinished_and_empty_chats(chat) -> None:
    assert check(to_html(chat(title=""))).words["title"] == ""
    session = chat(("q", "```py\nx = '"))
    reply = replace(session.turns[0].replies[0], state="unfinished", new_tokens=1)
    page = check(to_html(replace(session, turns=(replace(session.turns[0], replies=(reply,)),))))
    assert "x = '" in page.words["all"]
    assert "1 token · unfinished" in page.words["all"]


def test_every_colour_of_the_page_is_defined() -> None:
    rules = style_rules()
    used = set(re.findall(r"var\((--[\w-]+)\)", rules))
    light, dark = re.findall(r":root \{([^}]*)\}", rules)
    for theme in (light, dark):
        assert used <= set(re.findall(r"(--[\w-]+):", theme))
