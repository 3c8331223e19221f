"""TranscriptDocument: the items of one chat, kept in step with its record, and where they stand.

A reply that streams changes only the items of its live tail. Items that were never in view have
an estimated height until they are.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from app.records import ReplyRecord, TurnRecord
from app.render.markdown import (
    Block,
    CodeBlock,
    RuleBlock,
    Span,
    StreamParser,
    TableBlock,
    TextBlock,
)
from app.render.plain import PIECE_CHARS, pieces
from app.state.session import Session
from app.state.session_list import chip_of
from app.views.transcript_code import CodeItem
from app.views.transcript_items import (
    USER_PADDING,
    Item,
    TextItem,
    cut,
)
from app.views.transcript_meta import MetaItem
from app.views.transcript_notes import NoteItem, RuleItem
from app.views.transcript_table import TableItem

TOP_MARGIN = 12
BOTTOM_MARGIN = 20
TURN_GAP = 16
REPLY_GAP = 12
TEXT_GAP = 8
LIST_GAP = 4
FRAME_GAP = 12  # below a code block or a table

Place = tuple[int, int]  # index of an item, offset in its text


@dataclass(slots=True)
class _Turn:
    """One turn on the page: its user items, the reply's items by block, and the footer."""

    user_text: str
    user: list[Item]
    start: int = 0  # index of its first item
    parser: StreamParser = field(default_factory=StreamParser)
    reply_id: str = ""
    seen: str = ""
    body: list[list[Item]] = field(default_factory=list)
    footer: list[Item] = field(default_factory=list)
    footer_key: object = None

    @property
    def num_items(self) -> int:
        return len(self.user) + sum(map(len, self.body)) + len(self.footer)


def user_items(text: str) -> list[Item]:
    """A user's message as it was typed, in pieces that are cheap to lay out."""
    items: list[Item] = []
    joint = "\n\n"
    for start, end in pieces(text):
        part = text[start:end]
        last = end == len(text)
        ends_line = not last and part.endswith("\n")
        part = part.removesuffix("\n") if ends_line else part
        item = TextItem(TextBlock((Span(part),)), continued=start > 0)
        item.joint, item.is_user = joint, True
        item.first_of_user, item.last_of_user = start == 0, last
        if start == 0:
            item.gap = TURN_GAP
        joint = "\n" if ends_line else ""
        items.append(item)
    return items


def block_items(block: Block, wrap: bool) -> list[Item]:
    """The items that show one block: one, but a very long text gets several."""
    if isinstance(block, CodeBlock):
        return [CodeItem(block, wrap)]
    if isinstance(block, TableBlock):
        return [TableItem(block)]
    if isinstance(block, RuleBlock):
        return [RuleItem(block)]
    if len(block.text) <= PIECE_CHARS:
        return [TextItem(block)]
    return [
        TextItem(_part(block, start, end), continued=start > 0) for start, end in pieces(block.text)
    ]


def _space(item: Item, block: Block, before: Block | None) -> None:
    """The space above a block of a reply, and how it joins what stands above when copied."""
    if before is None:
        item.gap, item.joint = REPLY_GAP, "\n\n"
        return
    framed = isinstance(before, CodeBlock | TableBlock)
    if isinstance(block, TextBlock) and not block.level:
        in_list = bool(block.marker) and isinstance(before, TextBlock) and before.indent > 0
        item.gap = LIST_GAP if in_list else FRAME_GAP if framed else TEXT_GAP
        item.joint = "\n" if in_list else "\n\n"
    if isinstance(item, TextItem):
        item.continues_quote = before.quote > 0 and block.quote > 0


def _part(block: TextBlock, start: int, end: int) -> TextBlock:
    """The characters `start` to `end` of a block, in their styles."""
    spans, offset = [], 0
    for span in block.spans:
        first, last = max(start - offset, 0), min(end - offset, len(span.text))
        if last > first:
            spans.append(
                Span(
                    span.text[first:last], span.bold, span.italic, span.strike, span.code, span.link
                )
            )
        offset += len(span.text)
    marker = block.marker if start == 0 else ""
    return TextBlock(tuple(spans), block.level, block.indent, marker, block.quote)


class TranscriptDocument:
    """Items of all turns in order, and their places for one width of the column."""

    def __init__(self, session: Session) -> None:
        self.items: list[Item] = []
        self.tops: list[float] = []
        self.total = 0.0
        self.wrap_code = False
        self.width = 0
        self._session = session
        self._turns: list[_Turn] = []

    # --- in step with the record ---------------------------------------------------------------

    def sync(self, turn_index: int) -> int:
        """Show what the record says about a turn. Returns the first item that changed."""
        turns = self._session.record.turns
        first = len(self.items)
        for index in range(len(self._turns), min(turn_index + 1, len(turns))):
            first = min(first, self._add_turn(turns[index]))
        if turn_index < len(turns):
            first = min(first, self._sync_reply(turn_index, turns[turn_index]))
        return first

    def sync_all(self) -> int:
        """Show what the record says about every turn."""
        turns = self._session.record.turns
        known = [turn.user_text for turn in self._turns]
        if known != [turn.user_text for turn in turns[: len(known)]]:
            self.items, self.tops, self._turns = [], [], []
        return min([len(self.items), *[self.sync(index) for index in range(len(turns))]])

    def _add_turn(self, turn: TurnRecord) -> int:
        start = len(self.items)
        added = _Turn(turn.user_text, user_items(turn.user_text), start)
        self._turns.append(added)
        self.items += added.user
        self._place(start)
        return start

    def _sync_reply(self, turn_index: int, turn: TurnRecord) -> int:
        shown, reply = self._turns[turn_index], turn.reply
        if reply is None:
            return self._sync_waiting(turn_index)
        first_block = 0
        if shown.reply_id == reply.reply_id and reply.text.startswith(shown.seen):
            first_block = shown.parser.num_settled
        else:
            shown.parser, shown.seen = StreamParser(), ""
            shown.reply_id, shown.footer_key = reply.reply_id, None
        changed = len(self.items)
        if len(reply.text) > len(shown.seen) or first_block == 0:
            grown = reply.text[len(shown.seen) :]
            shown.seen = reply.text
            if grown:
                shown.parser.append(grown)
            changed = self._put_body(turn_index, first_block)
        return min(changed, self._sync_footer(turn_index, reply))

    def _sync_waiting(self, turn_index: int) -> int:
        """A message that stands in line behind the answer being written."""
        shown = self._turns[turn_index]
        if shown.footer_key == "waiting":
            return len(self.items)
        shown.footer_key = "waiting"
        end = shown.start + shown.num_items
        start = end - len(shown.footer)
        shown.footer = [NoteItem("In line: goes when the answer above ends.", is_error=False)]
        self._replace(turn_index, start, end, shown.footer)
        return start

    def _put_body(self, turn_index: int, first_block: int) -> int:
        """Items for the blocks from `first_block` on; returns the first item's index."""
        shown = self._turns[turn_index]
        blocks = shown.parser.blocks
        old_end = shown.start + shown.num_items - len(shown.footer)
        index = shown.start + len(shown.user) + sum(map(len, shown.body[:first_block]))
        old_tail = shown.body[first_block:]
        del shown.body[first_block:]
        for number, block in enumerate(blocks[first_block:]):
            before = old_tail[number] if number < len(old_tail) else []
            kept = len(before) == 1 and self._update(before[0], block)
            items = before if kept else block_items(block, self.wrap_code)
            for item in items:
                item.show_caret = False
            place = first_block + number
            _space(items[0], block, blocks[place - 1] if place else None)
            shown.body.append(items)
        fresh = [item for items in shown.body[first_block:] for item in items]
        self._replace(turn_index, index, old_end, fresh)
        return index

    def _update(self, item: Item, block: Block) -> bool:
        if isinstance(item, TextItem) and isinstance(block, TextBlock):
            return len(block.text) <= PIECE_CHARS and item.update(block)
        if isinstance(item, CodeItem) and isinstance(block, CodeBlock):
            return item.update(block, self.wrap_code)
        return isinstance(item, TableItem) and isinstance(block, TableBlock) and item.update(block)

    def _replace(self, turn_index: int, start: int, end: int, fresh: list[Item]) -> None:
        self.items[start:end] = fresh
        moved = len(fresh) - (end - start)
        if moved:
            for turn in self._turns[turn_index + 1 :]:
                turn.start += moved
        self._place(start)

    # --- footers -----------------------------------------------------------------------------

    def _sync_footer(self, turn_index: int, reply: ReplyRecord) -> int:
        shown = self._turns[turn_index]
        is_last = turn_index == len(self._session.record.turns) - 1
        status = ("", "")
        if reply.state == "streaming":
            status = (self._session.status, self._session.status_sentence())
        chip = chip_of(self._session)
        if not is_last:
            chip = chip.resting()
        facts = None if reply.state == "streaming" else reply
        key = (reply.state, facts, is_last, status, chip, bool(shown.body))
        is_same = key == shown.footer_key
        shown.footer_key = key
        self._show_caret(shown, reply)
        if is_same:
            return len(self.items)
        end = shown.start + shown.num_items
        start = end - len(shown.footer)
        shown.footer = self._footer(turn_index, reply, is_last)
        self._replace(turn_index, start, end, shown.footer)
        return max(0, start - 1)

    def _footer(self, turn_index: int, reply: ReplyRecord, is_last: bool) -> list[Item]:
        session = self._session
        if reply.state == "streaming":
            sentence = session.status_sentence()
            if session.status in ("waiting", "reading", "paused") and sentence:
                note = NoteItem(sentence, is_error=False)
                note.gap = TEXT_GAP if self._turns[turn_index].body else REPLY_GAP
                return [note]
            if not self._turns[turn_index].body:
                empty = TextItem(TextBlock(()))
                empty.gap, empty.show_caret = REPLY_GAP, True
                return [empty]
            return []
        chip = chip_of(session) if is_last else chip_of(session).resting()
        meta = MetaItem(turn_index, reply, chip, session.details.get(reply.reply_id))
        if reply.state == "failed":
            sentence = reply.error or "The reply failed."
            return [NoteItem(sentence, is_error=True, has_button=is_last), meta]
        return [meta]

    def _show_caret(self, shown: _Turn, reply: ReplyRecord) -> None:
        if shown.body:
            writes = self._session.status not in ("waiting", "reading", "paused")
            shown.body[-1][-1].show_caret = reply.state == "streaming" and writes

    # --- places ------------------------------------------------------------------------------

    def set_width(self, width: int) -> None:
        if width != self.width:
            self.width = width
            for item in self.items:
                if not item.height:
                    item.height = self._guess(item)
            self._place(0)

    def _guess(self, item: Item) -> float:
        height = item.estimate(self.width or 600)
        return height + USER_PADDING * (item.first_of_user + item.last_of_user)

    def _place(self, first: int) -> None:
        """Tops from item `first` on."""
        del self.tops[first:]
        y = float(TOP_MARGIN)
        if first:
            y = self.tops[first - 1] + self.items[first - 1].height
        for number in range(first, len(self.items)):
            item = self.items[number]
            if not item.height:
                item.height = self._guess(item)
            y += item.gap if number else 0
            self.tops.append(y)
            y += item.height
        self.total = y + BOTTOM_MARGIN

    def index_at(self, y: float) -> int:
        """Item whose place holds `y`, the gap above it included."""
        return max(0, min(len(self.items) - 1, bisect_right(self.tops, y) - 1))

    def lay_out(self, top: float, bottom: float) -> bool:
        """Lay out all that stands between two heights. True when something moved."""
        moved = False
        index = self.index_at(top)
        while index < len(self.items) and self.tops[index] < bottom:
            if self.items[index].ensure(self.width):
                self._place(index)
                moved = True
            index += 1
        return moved

    def set_wrap(self, wrap: bool) -> None:
        self.wrap_code = wrap
        for item in self.items:
            if isinstance(item, CodeItem):
                item.set_wrap(wrap)

    # --- text --------------------------------------------------------------------------------

    def text_between(self, first: Place, last: Place) -> str:
        """What a selection copies."""
        parts: list[str] = []
        for index in range(first[0], last[0] + 1):
            item = self.items[index]
            start = first[1] if index == first[0] else 0
            end = last[1] if index == last[0] else item.length
            if not item.length or end <= start:
                continue
            if parts:
                parts.append(item.joint)
            if start == 0 and (index > first[0] or last[0] > first[0]):
                parts.append(item.prefix)
            parts.append(cut(item.text, start, end))
        return "".join(parts)

    def end(self) -> Place:
        return (len(self.items) - 1, self.items[-1].length) if self.items else (0, 0)

    def turn_of(self, index: int) -> int:
        """The turn that an item belongs to, -1 when there is none."""
        return bisect_right([turn.start for turn in self._turns], index) - 1

    def last_item_of(self, turn_index: int) -> int:
        turn = self._turns[turn_index]
        return turn.start + turn.num_items - 1
