"""A chat as PDF. Document and writer are made, used and dropped within one call, so that the
call may run on any one thread."""

from __future__ import annotations

import re
from html import escape
from typing import Any

import shiboken6
from PySide6.QtCore import QBuffer, QByteArray, QEventLoop, QIODevice, QMarginsF, QSizeF
from PySide6.QtGui import QFont, QImage, QPageLayout, QPageSize, QPdfWriter, QTextDocument

from app.errors import ExportError
from app.export.rendered import reply_html
from app.export.words import about_words, reply_words
from app.records import SessionRecord, TurnRecord
from app.render.plain import for_qt, pieces
from app.render.resources import tokens

MARGIN_MM = 18.0
RESOLUTION = 144  # dots per inch; sizes below are points
BOX_LINES = 500  # a box of 100,000 lines took 20 s: Qt goes through a whole table for each page
SUBSTITUTIONS = ("calt", "liga", "clig", "dlig", "case", "zero")
_SPACES = re.compile(r"^ +| {2,}", re.MULTILINE)


def to_pdf(session: SessionRecord) -> bytes:
    """Raises ExportError when Qt cannot make the file."""
    # Long documents lay themselves out with a timer, which wants this thread to have a dispatcher.
    dispatcher = QEventLoop()
    content = QByteArray()
    device = QBuffer(content)
    device.open(QIODevice.OpenModeFlag.WriteOnly)
    writer = QPdfWriter(device)
    writer.setTitle(for_qt(session.title))
    writer.setCreator("Tessera")
    writer.setResolution(RESOLUTION)
    margins = QMarginsF(MARGIN_MM, MARGIN_MM, MARGIN_MM, MARGIN_MM)
    page = QPageSize(QPageSize.PageSizeId.A4)
    unit = QPageLayout.Unit.Millimeter
    writer.setPageLayout(QPageLayout(page, QPageLayout.Orientation.Portrait, margins, unit))
    document = _Document()
    document.setDefaultFont(_font())
    document.documentLayout().setPaintDevice(writer)
    area = writer.pageLayout().paintRectPixels(RESOLUTION)
    document.setDocumentMargin(0)
    document.setPageSize(QSizeF(area.size()))
    document.setHtml(_html(session))
    document.print_(writer)
    del document
    # By hand, because PySide never lets go of what setPaintDevice was given: without it each PDF
    # would leave its writer behind, to die on whatever thread ends last.
    shiboken6.delete(writer)
    device.close()
    del dispatcher
    if not content.startsWith(b"%PDF"):
        raise ExportError("The PDF could not be made; export as HTML and print that instead.")
    return bytes(content.data())


class _Document(QTextDocument):
    """Loads nothing: a file named in a message is not read (and no such name is written)."""

    def loadResource(self, kind: int, name: object) -> Any:
        # An empty image: without an answer Qt's layout opens the file by itself.
        is_image = kind == QTextDocument.ResourceType.ImageResource.value
        return QImage() if is_image else None


def _font() -> QFont:
    font = QFont(tokens()["type"]["ui"])
    font.setPointSizeF(10)
    # Glyphs put in for others (the dash between capitals, two underscores in code) have no
    # character of their own: who copies text out of the page would get control characters.
    for feature in SUBSTITUTIONS:
        font.setFeature(QFont.Tag(feature), 0)
    return font


def _html(session: SessionRecord) -> str:
    light = tokens()["light"]
    tertiary = light["text"]["tertiary"]
    parts = [
        f'<p style="font-size:15pt; font-weight:600; margin:0">{_text(session.title)}</p>',
        _small(about_words(session), tertiary),
    ]
    if session.system_prompt:
        parts.append(_box(session.system_prompt, light["background"]["chrome"]))
    for turn in session.turns:
        parts += _turn(turn, light)
    return (
        f'<html><body style="color:{light["text"]["primary"]}">'
        + "\n".join(parts)
        + "</body></html>"
    )


def _turn(turn: TurnRecord, light: dict[str, Any]) -> list[str]:
    parts = [_box(turn.user_text, light["background"]["fill"])]
    reply = turn.reply
    if reply is None:
        return parts
    colours = light["code"]
    html = reply_html(for_qt(reply.text), lambda name: f'style="color:{colours[name]}"')
    mono = ", ".join(f"'{name}'" for name in tokens()["type"]["mono"])
    # Qt's rich text breaks no lines within <pre>; a page has no scroll bar, so they must break.
    pre = (
        f'<pre style="white-space:pre-wrap; font-family:{mono}; font-size:9pt; '
        f'background-color:{colours["background"]}">'
    )
    html = html.replace("<pre>", pre).replace("<code>", f'<code style="font-family:{mono}">')
    html = html.replace("<table>", '<table cellpadding="4" cellspacing="0">')
    error = reply.state == "failed"
    colour = light["error"]["base"] if error else light["text"]["tertiary"]
    words = " · ".join(filter(None, (reply.model, reply_words(reply))))
    return [*parts, html, _small(words, colour)]


def _box(text: str, colour: str) -> str:
    """Plain text on a ground, all of its spaces and line ends kept.

    A paragraph for each line, and several for a very long one: one of 400,000 characters took 10 s.
    """
    lines = [
        f'<p style="margin:0">{_text(line[start:end]) or "&nbsp;"}</p>'
        for line in for_qt(text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        for start, end in pieces(line)
    ]
    table = '<table width="100%" cellpadding="8" cellspacing="0" style="margin-top:{}px">'
    cell = f'<tr><td bgcolor="{colour}">'
    parts = [
        f"{table.format(0 if start else 10)}{cell}{''.join(lines[start : start + BOX_LINES])}"
        for start in range(0, len(lines), BOX_LINES)
    ]
    return "".join(f"{part}</td></tr></table>\n" for part in parts)


def _small(text: str, colour: str) -> str:
    return f'<p style="color:{colour}; font-size:8pt; margin-top:2px">{_text(text)}</p>'


def _text(text: str) -> str:
    kept = _SPACES.sub(lambda match: "\u00a0" * len(match[0]), for_qt(text).replace("\t", "    "))
    return escape(" ".join(kept.splitlines()))
