"""Markdown blocks: what is shown for a text, and that a growing text gives the same blocks."""

from __future__ import annotations

import random
import time

import pytest

from app.render.markdown import (
    CodeBlock,
    RuleBlock,
    StreamParser,
    TableBlock,
    TextBlock,
    parse,
    plain_blocks,
)

TEXT = """# Title
Some *text* with `code` and <smirk> **bold**
second line

- a
- b with **x**
  1. inner
  2. inner2

  para in item
- c

1. one
1. two

5. five

```python
def f():
    '''doc
    more'''

x = 2
```
after

| a | b |
|---|--:|
| 1 | `2` |

> quote
lazy

---
~~~
tilde
~~~
- item
```
unclosed
"""


def kinds_of(text: str) -> list[str]:
    return [type(block).__name__ for block in parse(text)]


def test_every_kind_of_block_is_found():
    kinds = set(kinds_of(TEXT))
    assert kinds == {"TextBlock", "CodeBlock", "TableBlock", "RuleBlock"}
    blocks = parse(TEXT)
    assert blocks[0] == TextBlock(blocks[0].spans, level=1)
    code = next(block for block in blocks if isinstance(block, CodeBlock))
    assert (code.language, code.closed) == ("python", True)
    assert code.text.endswith("x = 2")
    assert blocks[-1] == CodeBlock("unclosed", closed=False)
    table = next(block for block in blocks if isinstance(block, TableBlock))
    assert table.aligns == ("", "right")
    assert [span.code for span in table.rows[0][1]] == [True]
    assert any(isinstance(block, RuleBlock) for block in blocks)


@pytest.mark.parametrize("text", ["<smirk> hello", "<b>bold</b>", "<script>x()</script>", "<!-- a"])
def test_html_is_shown_as_it_was_written(text):
    (block,) = parse(text)
    assert isinstance(block, TextBlock)
    assert block.text == text


def test_an_image_becomes_a_link_and_is_never_a_file():
    (block,) = parse("![a cat](https://example.org/cat.png)")
    assert block.text == "a cat"
    assert block.spans[0].link == "https://example.org/cat.png"
    (local,) = parse("![x](file:///etc/passwd)")
    assert [span.link for span in local.spans] == [""]


def test_numbers_of_a_list_go_on_and_markers_show_nesting():
    items = [(b.marker, b.indent) for b in parse("1. a\n1. b\n   - c\n1. d") if b.marker]
    assert items == [("1.", 1), ("2.", 1), ("•", 2), ("3.", 1)]


@pytest.mark.parametrize("seed", range(40))
def test_a_growing_text_gives_the_same_blocks(seed):
    chance, parser, at = random.Random(seed), StreamParser(), 0
    text = TEXT * chance.choice([1, 2])
    while at < len(text):
        step = chance.choice([1, 2, 3, 5, 9, 40])
        parser.append(text[at : at + step])
        at += step
    assert parser.blocks == parse(text)


def test_settled_blocks_stay_the_same_objects():
    parser = StreamParser()
    parser.append("First paragraph.\n\nSecond")
    first, number = parser.blocks[0], parser.num_settled
    assert number == 1
    parser.append(" goes on\n\n```py\nx = 1\n")
    assert parser.blocks[0] is first
    assert parser.num_settled == 2


def test_the_cost_of_a_piece_does_not_grow_with_the_answer():
    text = TEXT.replace("unclosed\n", "x\n```\n\n") * 30
    parser = StreamParser()
    start = time.perf_counter()
    pieces = [text[at : at + 4] for at in range(0, 8000, 4)]  # 2,000 tokens
    for piece in pieces:
        parser.append(piece)
    per_piece_ms = (time.perf_counter() - start) / len(pieces) * 1000
    assert per_piece_ms < 1.0  # 0.05 on a quiet core; a parse of everything takes 3.4


@pytest.mark.parametrize(
    "text", ["a" * 200_000, "*a" * 30_000, "[" * 30_000, "> " * 3000, "`" * 30_000]
)
def test_hostile_text_is_parsed_in_bounded_time(text):
    start = time.perf_counter()
    blocks = parse(text)
    assert time.perf_counter() - start < 5
    assert blocks


@pytest.mark.parametrize("mark", ["> ", "- ", "1. "])
@pytest.mark.parametrize("depth", [1, 5, 12, 19, 39, 40, 41, 200])
def test_no_depth_of_nesting_loses_text(mark, depth):
    blocks = parse(mark * depth + "needle")
    assert "needle" in "".join(block.text for block in blocks if isinstance(block, TextBlock))


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\v", "\f", "\x1c"])
def test_only_line_feeds_end_lines_in_a_text_that_grows(end):
    text = f"a{end}b{end}c\n\nsecret words\n\nlast"
    parser = StreamParser()
    for letter in text:
        parser.append(letter)
    assert parser.blocks == parse(text)


def test_a_huge_text_is_shown_as_it_is():
    row = "|" + "a|" * 500 + "\n"
    text = row + "|" + "-|" * 500 + "\n" + row * 500
    assert parse(text) == plain_blocks(text)
    parser = StreamParser()
    parser.append("# Head\n\nwords\n\n")
    parser.append(text)
    assert parser.blocks[0] == parse("# Head")[0]
    assert "a|a|a" in parser.blocks[-1].text
