"""Markdown keeps every message word for word, and no message swallows what follows it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from app.export.as_markdown import close_block, to_markdown

PYTHON = "Look:\n\n```python\ndef f(x):\n\treturn `x`  \n\n\n# not a heading\n```\n\nDone."
NESTED = "`````md\n```py\nx\n```\n~~~\n````\n`````"
IN_LIST = "1. One:\n\n   ```sh\n   ls\n   ```\n2. Two"


def headings(content: bytes) -> list[str]:
    """Top-level headings, as another program (one that reads HTML too) sees them."""
    tokens = MarkdownIt("commonmark", {"html": True}).parse(content.decode())
    return [
        tokens[i + 1].content
        for i, token in enumerate(tokens)
        if token.type == "heading_open" and token.level == 0
    ]


@pytest.mark.parametrize(
    "text",
    [
        PYTHON, NESTED, IN_LIST, "~~~\n```\n~~~", "```\n```", "``not a fence", "a ``` b", "",
        "    indented ```\n\nx", "> ```\n> quoted", "trailing  \nspaces\n\n", "\ttab", "<b>x</b>",
        "<div>\n\nx", "``` a`b\nno fence: a backtick in its info", "* a\n\n  ```\n  open in a list",
        "line\u2028``` no line end for Markdown", "x\x0b```", "x\x85~~~", "` `` " * 900, "<" * 5000,
    ],
)  # fmt: skip
def test_a_message_is_kept_to_the_letter(chat, text: str) -> None:
    content = to_markdown(chat((text, text), ("next", "last"), system_prompt=text))
    wanted = f"## You\n\n{text}\n\n## Small-1B\n\n{text}\n\n## You\n\nnext\n\n## Small-1B\n\nlast\n"
    assert content.decode().endswith(wanted)
    assert headings(content)[-4:] == ["You", "Small-1B", "You", "Small-1B"]


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("```python\nprint(1)", "\n```"),
        ("```python\nprint(1)\n", "```"),
        ("```", "\n```"),
        ("`````\n```\ninner\n```", "\n`````"),
        ("~~~~ text\n```\n~~~", "\n~~~~"),
        ("```\nx\n``` y", "\n```"),
        ("```\nclosed\n```\n\n  ~~~\nopen", "\n~~~"),
        ("a\r\n\r\n```\r\nb\r\n", "```"),
        ("see <!-- no\n\n<!-- yes", "\n-->"),
        ("<script>\nalert(1)", "\n</script>"),
        ("<pre>\n\nx", "\n</pre>"),
        ("<?php\n\necho 1;", "\n?>"),
        ("<![CDATA[\n\nx", "\n]]>"),
    ],
)
def test_what_was_left_open_is_closed_and_nothing_else_changes(chat, text: str, end: str) -> None:
    """A reply that was stopped in the middle of its code."""
    assert close_block(text) == text + end
    content = to_markdown(chat((text, text), ("next", "last"), system_prompt=text))
    wanted = ["A chat", "System prompt", *["You", "Small-1B"] * 2]
    assert headings(content) == wanted
    assert content.decode().count(text + end) == 3


def test_a_fence_left_open_in_a_list_ends_with_the_list() -> None:
    """A fence added there would open a new one."""
    text = "- a\n  ```py\n  x = 1"
    assert close_block(text) == text


PARTS = st.sampled_from(
    ["```", "````", "~~~", "\n", "\n\n", "    ", "  ", "- ", "> ", "x", "py", "<!--", "-->",
     "<pre>", "</pre>", "<script>", "<div>", "<?", "\r", "\u2028", "1. ", "# ", "\t", "`",
     "|", "---"]
)  # fmt: skip


@given(st.lists(PARTS, max_size=14).map("".join))
def test_no_message_swallows_the_next(text: str) -> None:
    closed = close_block(text)
    assert closed.startswith(text)
    assert headings(f"{closed}\n\n## After\n\nend".encode())[-1:] == ["After"]


def test_the_chosen_version_is_written_and_the_others_are_not(chat) -> None:
    session = chat(("q", "one"))
    first = session.turns[0].replies[0]
    turn = replace(session.turns[0], replies=(first, replace(first, text="two")), chosen=1)
    content = to_markdown(replace(session, turns=(turn,))).decode()
    assert "\ntwo\n" in content
    assert "\none\n" not in content


def test_names_stay_on_their_line(chat) -> None:
    """A title or a model's name with line ends, as an import may bring them."""
    session = chat(("q", "a"), title="One\n\n# Two\r\nThree")
    reply = replace(session.turns[0].replies[0], model="M\n## N", state="failed", error="No\nroom.")
    session = replace(session, turns=(replace(session.turns[0], replies=(reply,)),))
    content = to_markdown(session)
    assert headings(content) == ["One # Two Three", "You", "M ## N"]
    assert content.decode().endswith("\n*No room.*\n")


def test_a_chat_without_messages_and_a_message_without_a_reply(chat) -> None:
    assert headings(to_markdown(chat())) == ["A chat"]
    assert to_markdown(chat(("alone", None))).decode().endswith("## You\n\nalone\n")


def test_odd_characters_are_written_as_utf_8(chat) -> None:
    content = to_markdown(chat(("a\ud800b \x00 \u202e שלום 👩‍👩‍👧", None)))
    assert content.decode().endswith("a\ufffdb \x00 \u202e שלום 👩‍👩‍👧\n")
