"""Markdown as a flat list of blocks to paint, and a parser for text that still grows. No Qt.

HTML is never interpreted: `<b>` is shown as it was written. Images are never loaded: they become
links to their address. A list becomes one block per item, so that it can be settled item by item.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token

MAX_INLINE_CHARS = 8_000  # a longer paragraph is shown as it is; nobody formats such a line
MAX_CHARS = 100_000  # a longer text is shown as it is: a table of 500 kB took 14 s to parse
MAX_NESTING = 40  # lists and quotations within each other; the library drops what is deeper


@dataclass(frozen=True, slots=True)
class Span:
    """A run of text in one style."""

    text: str
    bold: bool = False
    italic: bool = False
    strike: bool = False
    code: bool = False
    link: str = ""


@dataclass(frozen=True, slots=True)
class TextBlock:
    """A paragraph, a heading (`level` 1 to 6) or one item of a list (`marker` not empty)."""

    spans: tuple[Span, ...]
    level: int = 0
    indent: int = 0  # list levels around it
    marker: str = ""  # "•" or "3."
    quote: int = 0  # quotation levels around it

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans)


@dataclass(frozen=True, slots=True)
class CodeBlock:
    text: str  # without the final line end
    language: str = ""
    indent: int = 0
    quote: int = 0
    closed: bool = True  # False while the closing fence has not come


@dataclass(frozen=True, slots=True)
class TableBlock:
    head: tuple[tuple[Span, ...], ...]
    rows: tuple[tuple[tuple[Span, ...], ...], ...]
    aligns: tuple[str, ...]  # "", "left", "center", "right" for each column
    indent: int = 0
    quote: int = 0


@dataclass(frozen=True, slots=True)
class RuleBlock:
    indent: int = 0
    quote: int = 0


Block = TextBlock | CodeBlock | TableBlock | RuleBlock


def _bounded_inline(state: StateCore) -> None:
    """The library's inline rule, but a very long paragraph stays plain text."""
    for token in state.tokens:
        if token.type != "inline":
            continue
        if token.children is None:
            token.children = []
        if len(token.content) > MAX_INLINE_CHARS:
            token.children.append(Token("text", "", 0, content=token.content))
        else:
            state.md.inline.parse(token.content, state.md, state.env, token.children)


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": MAX_NESTING})
    parser.enable(["table", "strikethrough"])
    parser.core.ruler.at("inline", _bounded_inline)
    return parser


_MD = _parser()


def parse(text: str) -> list[Block]:
    """All blocks of a text that will not grow."""
    if len(text) > MAX_CHARS:
        return plain_blocks(text)
    return [block for block, _ in _parse_with_lines(text)]


def plain_blocks(text: str) -> list[Block]:
    """A text shown as it was written: one block."""
    return [TextBlock((Span(text),))]


# --- from tokens to blocks --------------------------------------------------------------------


@dataclass(slots=True)
class _List:
    ordered: bool
    number: int


class _Walker:
    """Turns the library's tokens into blocks, each with the line at which it can be cut off."""

    def __init__(self) -> None:
        self.out: list[tuple[Block, int]] = []
        self._lists: list[_List] = []
        self._quote = 0
        self._marker = ""
        self._cut = 0  # line of the newest top-level block or list item
        self._level = 0

    def walk(self, tokens: list[Token]) -> list[tuple[Block, int]]:
        index = 0
        while index < len(tokens):
            index = self._token(tokens, index)
        return self.out

    def _token(self, tokens: list[Token], index: int) -> int:
        token = tokens[index]
        kind = token.type
        if token.map and (token.level == 0 or (kind == "list_item_open" and token.level == 1)):
            self._cut = token.map[0]
        if kind in ("bullet_list_open", "ordered_list_open"):
            start = token.attrGet("start")
            number = int(start) if start is not None else 1
            self._lists.append(_List(kind.startswith("ordered"), number))
        elif kind in ("bullet_list_close", "ordered_list_close"):
            self._lists.pop()
        elif kind == "list_item_open":
            self._open_item()
        elif kind == "list_item_close":
            if self._marker:  # an item without text yet
                self._add(self._text(()))
        elif kind == "blockquote_open":
            self._quote += 1
        elif kind == "blockquote_close":
            self._quote -= 1
        elif kind == "heading_open":
            self._level = int(token.tag[1])
        elif kind == "heading_close":
            self._level = 0
        elif kind == "inline":
            self._add(self._text(_spans(token.children or [])))
        elif kind in ("fence", "code_block"):
            self._code(token)
        elif kind == "hr":
            self._add(RuleBlock(len(self._lists), self._quote))
        elif kind == "table_open":
            return self._table(tokens, index)
        return index + 1

    def _open_item(self) -> None:
        top = self._lists[-1]
        self._marker = f"{top.number}." if top.ordered else "•"
        top.number += 1

    def _text(self, spans: tuple[Span, ...]) -> TextBlock:
        marker, self._marker = self._marker, ""
        return TextBlock(spans, self._level, len(self._lists), marker, self._quote)

    def _add(self, block: Block) -> None:
        self.out.append((block, self._cut))

    def _code(self, token: Token) -> None:
        if self._marker:
            self._add(self._text(()))
        language = token.info.strip().split(" ")[0] if token.info else ""
        text = token.content.removesuffix("\n")
        closed = True
        if token.type == "fence" and token.map:
            # An open fence runs to the last line: one line less than a closed one has.
            num_inside = text.count("\n") + 1 if token.content else 0
            closed = token.map[1] - token.map[0] >= num_inside + 2
        self._add(CodeBlock(text, language, len(self._lists), self._quote, closed))

    def _table(self, tokens: list[Token], index: int) -> int:
        rows: list[list[tuple[Span, ...]]] = []
        aligns: list[str] = []
        num_head = 0
        while tokens[index].type != "table_close":
            token = tokens[index]
            if token.type == "tr_open":
                rows.append([])
            elif token.type == "th_open":
                style = str(token.attrGet("style") or "")
                aligns.append(style.removeprefix("text-align:"))
                num_head = 1
            elif token.type == "inline":
                rows[-1].append(_spans(token.children or []))
            index += 1
        head = tuple(rows[0]) if num_head and rows else ()
        body = tuple(tuple(row) for row in rows[num_head:])
        self._add(TableBlock(head, body, tuple(aligns), len(self._lists), self._quote))
        return index + 1


@dataclass(slots=True)
class _Style:
    bold: int = 0
    italic: int = 0
    strike: int = 0
    link: str = ""

    def span(self, text: str, code: bool = False) -> Span:
        return Span(text, bool(self.bold), bool(self.italic), bool(self.strike), code, self.link)


_STYLE_TOKENS = {"strong": "bold", "em": "italic", "s": "strike"}


def _spans(children: Sequence[Token]) -> tuple[Span, ...]:
    style = _Style()
    spans: list[Span] = []
    for token in children:
        name, _, step = token.type.rpartition("_")
        if name in _STYLE_TOKENS:
            field = _STYLE_TOKENS[name]
            setattr(style, field, getattr(style, field) + (1 if step == "open" else -1))
        elif token.type == "link_open":
            style.link = str(token.attrGet("href") or "")
        elif token.type == "link_close":
            style.link = ""
        elif token.type == "code_inline":
            spans.append(style.span(token.content, code=True))
        elif token.type == "softbreak":
            spans.append(style.span(" "))
        elif token.type == "hardbreak":
            spans.append(style.span("\n"))
        elif token.type == "image":
            words = token.content or str(token.attrGet("src") or "image")
            spans.append(replace(style.span(words), link=str(token.attrGet("src") or "")))
        elif token.content:
            spans.append(style.span(token.content))
    return _joined(spans)


def _joined(spans: list[Span]) -> tuple[Span, ...]:
    """Neighbours in the same style become one span."""
    out: list[Span] = []
    for span in spans:
        if out and not span.code and replace(out[-1], text="") == replace(span, text=""):
            out[-1] = replace(out[-1], text=out[-1].text + span.text)
        else:
            out.append(span)
    return tuple(out)


def _parse_with_lines(text: str) -> list[tuple[Block, int]]:
    """Blocks, each with the number of the line at which its top-level part starts."""
    tokens = _MD.parse(text)
    if any(token.level >= MAX_NESTING - 1 for token in tokens if token.nesting):
        return [(block, 0) for block in plain_blocks(text)]  # nothing that was written is lost
    return _Walker().walk(tokens)


# --- text that grows --------------------------------------------------------------------------


_LONE_NUMBER = re.compile(r"(?:^|\n) {0,3}\d{1,9}$")  # the next item of a list may be coming


def _is_numbered_item(block: TextBlock) -> bool:
    return block.indent == 1 and block.marker.endswith(".")


class StreamParser:
    """Parses a growing text; blocks that can no longer change are never parsed again.

    `blocks[:num_settled]` are final. Only the live tail (the last paragraph, list item, table or
    code block) is parsed again on each `append`, so the cost does not grow with the answer.
    """

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.num_settled = 0
        self._tail = ""
        self._next_number = 0  # number of the next list item when the tail continues a list
        self._open_fence = ""  # fence of the code block that the tail is, "" = none

    def append(self, text: str) -> None:
        """More text. Changes `blocks` from `num_settled` (as it was before) on."""
        self._tail += text
        if self._open_fence and self._extend_code(text):
            return
        del self.blocks[self.num_settled :]
        if len(self._tail) > MAX_CHARS:
            self.blocks += plain_blocks(self._tail)
            return
        parsed = self._renumbered(_parse_with_lines(self._tail))
        self.blocks += [block for block, _ in parsed]
        self._settle(parsed)
        self._note_fence()

    def _renumbered(self, parsed: list[tuple[Block, int]]) -> list[tuple[Block, int]]:
        """Numbers of a list whose first items were cut off: they go on where those stopped."""
        number, out = self._next_number, []
        for block, line in parsed:
            if block.indent == 0:
                number = 0  # the list has ended
            elif number and isinstance(block, TextBlock) and _is_numbered_item(block):
                block = replace(block, marker=f"{number}.")
                number += 1
            out.append((block, line))
        return out

    def _settle(self, parsed: list[tuple[Block, int]]) -> None:
        """Cut everything before the last top-level block or list item off the tail."""
        if not parsed or parsed[-1][1] == 0 or _LONE_NUMBER.search(self._tail):
            return
        line = parsed[-1][1]
        settled = [block for block, at in parsed if at < line]
        self.num_settled += len(settled)
        first_of_tail = parsed[len(settled)][0]
        self._tail = "\n".join(self._tail.split("\n")[line:])  # as the library counts lines
        self._next_number = 0
        if isinstance(first_of_tail, TextBlock) and _is_numbered_item(first_of_tail):
            self._next_number = int(first_of_tail.marker[:-1])

    def _note_fence(self) -> None:
        """Remember that the tail is one open code block at the left margin."""
        self._open_fence = ""
        last = self.blocks[-1] if self.blocks else None
        is_code = isinstance(last, CodeBlock) and not last.closed and not last.indent
        if is_code and len(self.blocks) == self.num_settled + 1:
            opening = self._tail.split("\n", 1)
            mark = opening[0][:1]
            if len(opening) == 2 and mark in "`~" and mark:
                run = len(opening[0]) - len(opening[0].lstrip(mark))
                self._open_fence = mark * run

    def _extend_code(self, text: str) -> bool:
        """The open code block grows by `text`; False when its closing fence may be coming."""
        start = self._tail.rfind("\n", 0, len(self._tail) - len(text)) + 1
        mark = self._open_fence[0]
        if any(line.lstrip(" ").startswith(mark) for line in self._tail[start:].split("\n")):
            return False
        last = self.blocks[-1]
        assert isinstance(last, CodeBlock)
        body = self._tail.split("\n", 1)[1]
        self.blocks[-1] = replace(last, text=body.removesuffix("\n"))
        return True
