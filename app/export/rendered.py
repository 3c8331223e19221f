"""Replies as HTML, for the HTML and the PDF export. HTML in a message is shown, never interpreted.

Nothing is loaded from anywhere: an image becomes a link to its address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from app.render.highlight import highlight
from app.render.markdown import MAX_CHARS, MAX_INLINE_CHARS

CodeStyle = Callable[[str], str]  # name of a code colour -> attributes of its span
MAX_NESTING = 24  # lists and quotations within each other; the library drops what is deeper


def reply_html(text: str, style: CodeStyle) -> str:
    """A reply's Markdown as HTML; `style` says how a run of code is coloured."""
    if len(text) > MAX_CHARS:
        return _as_written(text)
    options = {"html": False, "maxNesting": MAX_NESTING}
    parser = MarkdownIt("commonmark", options, renderer_cls=_Renderer)
    parser.enable(["table", "strikethrough"])
    parser.core.ruler.at("inline", _bounded_inline)
    env = {"style": style}
    tokens = parser.parse(text, env)
    # A list takes two levels before its text; so near the limit something may have been dropped.
    if any(token.nesting == 1 and token.level >= MAX_NESTING - 2 for token in tokens):
        return _as_written(text)
    return str(parser.renderer.render(tokens, parser.options, env))


def code_html(text: str, language: str, style: CodeStyle) -> str:
    """Escaped code with a span for each coloured run."""
    lines = text.split("\n")
    return "\n".join(
        _line_html(line, runs, style)
        for line, runs in zip(lines, highlight(text, language), strict=True)
    )


def _as_written(text: str) -> str:
    return f"<pre><code>{escape(text)}</code></pre>\n"


def _line_html(line: str, runs: Sequence[tuple[int, int, str]], style: CodeStyle) -> str:
    parts, end = [], 0
    for start, length, colour in runs:
        parts.append(escape(line[end:start]))
        end = start + length
        parts.append(f"<span {style(colour)}>{escape(line[start:end])}</span>")
    parts.append(escape(line[end:]))
    return "".join(parts)


def _bounded_inline(state: StateCore) -> None:
    """Marks within a paragraph, unless it is very long; images within a link are its words."""
    for token in state.tokens:
        if token.type != "inline":
            continue
        token.children = []
        if len(token.content) > MAX_INLINE_CHARS:
            token.children.append(Token("text", "", 0, content=token.content))
            continue
        state.md.inline.parse(token.content, state.md, state.env, token.children)
        depth = 0
        for child in token.children:
            depth += child.nesting if child.type.startswith("link_") else 0
            child.meta["in_link"] = depth > 0


class _Renderer(RendererHTML):
    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[idx]
        language = token.info.split()[0] if token.info.strip() else ""
        return self._pre(token.content, language, env["style"])

    def code_block(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType
    ) -> str:
        return self._pre(tokens[idx].content, "", env["style"])

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[idx]
        address = escape(str(token.attrs.get("src", "")))
        words = escape(token.content) or address
        if token.meta["in_link"]:  # a link within a link is not HTML
            return words
        return f'<a href="{address}">{words}</a>'

    @staticmethod
    def _pre(content: str, language: str, style: Any) -> str:
        code = code_html(content.removesuffix("\n"), language, style)
        return f"<pre><code>{code}</code></pre>\n"
