"""The small line under a finished reply: what it took, and why it ended if not by itself."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QFontMetricsF, QPainter

from app.records import ReplyRecord
from app.render.chip import paint_chip
from app.render.figures import memory_text
from app.render.theme import theme
from app.state.session import ReplyDetails
from app.state.session_list import Chip
from app.state.words import reused_words
from app.views.transcript_items import Item, Selected

HEIGHT = 28
PART_GAP = 16
CHIP_ROOM = 18

_ENDINGS = {"length": "Token limit", "cancelled": "Stopped"}


def ending_words(reply: ReplyRecord) -> str:
    """Why a reply ended, "" for the plain end."""
    if reply.state == "unfinished":
        return "Unfinished: interrupted"
    return _ENDINGS.get(reply.finish_reason, "")


def meta_parts(reply: ReplyRecord) -> list[tuple[str, str]]:
    """The texts of the line and their colours, the most important ones first."""
    parts: list[tuple[str, str]] = []
    if reply.num_blocks:
        noun = "block" if reply.num_blocks == 1 else "blocks"
        price = f"{reply.num_blocks:,} {noun} · {memory_text(reply.kv_bytes)}"
        parts.append((price, "text.secondary"))
    ending = ending_words(reply)
    if ending:
        parts.append((ending, "warn.base" if reply.state == "unfinished" else "text.secondary"))
    if reply.tokens_per_s > 0:
        parts.append((f"{reply.tokens_per_s:.1f} tok/s", "text.tertiary"))
    if reply.ttft_ms > 0:
        parts.append((f"first token {reply.ttft_ms / 1000:.2f} s", "text.tertiary"))
    if reply.prompt_tokens:
        prompt = f"{reply.prompt_tokens:,} prompt"
        if reply.cached_tokens:
            prompt += f", {reply.cached_tokens:,} from cache"
        parts.append((prompt, "text.tertiary"))
    return parts


def detail_lines(reply: ReplyRecord, details: ReplyDetails | None) -> list[str]:
    """Everything that is known of a finished reply, a line each: for the tool tip, where what the
    line has no room for is said too."""
    details = details or ReplyDetails()
    parts = [text for text, _ in meta_parts(reply)]
    if reply.prompt_tokens:
        parts.pop()  # said below, at length
        num_reused = details.reused_tokens
        num_reused = reply.cached_tokens if num_reused is None else num_reused
        parts.append(reused_words(num_reused, reply.prompt_tokens))
    if details.first_difference:
        parts.append(details.first_difference)
    if details.waste_ratio > 0:
        share = f"{100 * details.waste_ratio:.1f}" if details.waste_ratio >= 0.001 else "under 0.1"
        parts.append(f"{share} % of the slots it held were empty")
    return [text[0].upper() + text[1:] for text in parts]


class MetaItem(Item):
    """Painted below a reply; its buttons are real widgets that the view places over it."""

    gap = 8
    joint = ""

    def __init__(
        self, turn_index: int, reply: ReplyRecord, chip: Chip, details: ReplyDetails | None = None
    ) -> None:
        super().__init__()
        self.details = details
        self.turn_index = turn_index
        self.reply = reply
        self.chip = chip
        self.actions_width = 0  # room that the buttons take at the right, set by the view

    def _build(self, width: int) -> None:
        self.height = float(HEIGHT)
        self._width = width

    def estimate(self, width: int) -> float:
        return float(HEIGHT)

    def hit(self, x: float, y: float) -> int:
        return 0

    @property
    def tip(self) -> str:
        return "\n".join(detail_lines(self.reply, self.details))

    def paint(self, painter: QPainter, clip: QRectF, selected: Selected | None) -> None:
        font = theme().font("small", "regular")
        metrics = QFontMetricsF(font)
        painter.setFont(font)
        x = 0.0
        parts = meta_parts(self.reply)
        if self.reply.num_blocks:
            place = QPointF(0, (HEIGHT - theme().size("chip")) / 2)
            paint_chip(painter, place, self.chip.owner, self.chip.state, self.chip.fill)
            x = CHIP_ROOM
        for text, colour in parts:
            room = metrics.horizontalAdvance(text)
            if x + room > self._width - self.actions_width - 8:
                break
            painter.setPen(theme().color(colour))
            flags = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
            painter.drawText(QRectF(x, 0, room + 2, HEIGHT), int(flags), text)
            x += room + PART_GAP
