"""Replies as HTML, for the HTML and the PDF export. HTML in a message is shown, never interpreted.

Nothing is loaded from anywhere: an image becomes a link to its address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from app.render.highlight import highlight

CodeStyle = Callable[[str], str]  # name of a code colour -> attributes of its span
MAX_MARKDOWN_CHARS = 2_000_000  # beyond, text is shown as it is


def reply_html(text: str, style: CodeStyle) -> str:
    """A reply's Markdown as HTML; `style` says how a run of code is coloured."""
    if len(text) > MAX_MARKDOWN_CHARS:
        return f"<pre>{escape(text)}</pre>"
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}, renderer_cls=_Renderer)
    parser.enable(["table", "strikethrough"])
    return str(parser.render(text, {"style": style}))


def code_html(text: str, language: str, style: CodeStyle) -> str:
    """Escaped code with a span for each coloured run."""
    lines = text.split("\n")
    return "\n".join(
        _line_html(line, runs, style)
        for line, runs in zip(lines, highlight(text, language), strict=True)
    )


def _line_html(line: str, runs: Sequence[tuple[int, int, str]], style: CodeStyle) -> str:
    parts, end = [], 0
    for start, length, colour in runs:
        parts.append(escape(line[end:start]))
        end = start + length
        parts.append(f"<span {style(colour)}>{escape(line[start:end])}</span>")
    parts.append(escape(line[end:]))
    return "".join(parts)


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
        words = escape(token.content or str(token.attrs.get("src", "")))
        return f'<a href="{address}">{words}</a>'

    @staticmethod
    def _pre(content: str, language: str, style: Any) -> str:
        return f"<pre><code>{code_html(content.rstrip(chr(10)), language, style)}</code></pre>\n"
