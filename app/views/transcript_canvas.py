"""TranscriptCanvas: one chat's turns, laid out, scrolled and painted; no mouse, no keys.

Only what is in view is laid out and painted. A hidden view does nothing at all until it is shown;
then it takes everything from the record. The end is followed only while the user is there.
"""

from __future__ import annotations

from PySide6.QtCore import QRectF, Qt, QTimer, Slot
from PySide6.QtGui import (
    QFocusEvent,
    QGuiApplication,
    QHideEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
    QShowEvent,
)
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QWidget

from app.render.theme import theme
from app.state.session import Session
from app.views.transcript_document import Place, TranscriptDocument
from app.views.transcript_items import USER_INSET, Item

MARGIN = 32  # least space beside the column, the inset of turns included
AT_END_PX = 2
CLOCK_MS = 1000  # how long a pause lasts is said in whole seconds


def column_of(width: int, window_width: int) -> tuple[int, int]:
    """Left edge and width of the reading column in a view of `width`."""
    wide = theme().size("reading_column_wide" if window_width >= 1600 else "reading_column")
    column = int(min(wide, width - 2 * MARGIN))
    return (width - column) // 2, column


class TranscriptCanvas(QAbstractScrollArea):
    """Keeps a document in step with a session and on the screen."""

    def __init__(self, session: Session, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._session = session
        self.document = TranscriptDocument(session)
        self.following = True  # the end is in view and stays in view
        self._moving = False  # the scroll bar moves because we move it
        self._last_value = 0
        self._dirty: set[int] = set()
        self._all_dirty = True
        self._anchor: Place | None = None
        self._cursor: Place | None = None
        self._focus_by_key = False
        self._timer = QTimer(self)
        self._timer.setSingleShot(True)
        self._timer.timeout.connect(self._refresh)
        self._clock = QTimer(self)  # runs only while a pause is in sight
        self._clock.setInterval(CLOCK_MS)
        self._clock.timeout.connect(self._on_session)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.viewport().setAutoFillBackground(False)
        self.verticalScrollBar().setSingleStep(44)
        self.verticalScrollBar().valueChanged.connect(self._on_scrolled)
        session.turn_added.connect(self._on_turn_added)
        session.turn_changed.connect(self._on_turn)
        session.text_appended.connect(self._on_text)
        session.changed.connect(self._on_session)

    # --- in step with the session ----------------------------------------------------------------

    @Slot(int)
    def _on_turn_added(self, turn_index: int) -> None:
        self.following = True
        self._mark(turn_index)
        if turn_index:
            self._mark(turn_index - 1)

    @Slot(int)
    def _on_turn(self, turn_index: int) -> None:
        self._mark(turn_index)

    @Slot(int, str)
    def _on_text(self, turn_index: int, _text: str) -> None:
        # The text is read from the record: on its way through a signal Qt may garble it.
        self._mark(turn_index)

    def _run_clock(self) -> None:
        wanted = self.isVisible() and bool(self._session.paused_s)
        if wanted != self._clock.isActive():
            (self._clock.start if wanted else self._clock.stop)()

    @Slot()
    def _on_session(self) -> None:
        self._run_clock()
        turns = self._session.record.turns
        for index in range(len(turns) - 1, -1, -1):
            self._mark(index)
            reply = turns[index].reply
            if reply is not None:
                break  # those above have their final line

    def _mark(self, turn_index: int) -> None:
        if turn_index >= 0:
            self._dirty.add(turn_index)
        if self.isVisible() and not self._timer.isActive():
            self._timer.start(0)

    @Slot()
    def _refresh(self) -> None:
        """Show what changed since the last time; many changes cost one pass."""
        if not self.isVisible():
            return
        if self._all_dirty:
            first = self.document.sync_all()
        else:
            first = min([self.document.sync(turn) for turn in sorted(self._dirty)], default=0)
        self._all_dirty = False
        self._dirty.clear()
        self._drop_lost_selection(first)
        self._arrange()
        self.viewport().update()

    def _drop_lost_selection(self, first_changed: int) -> None:
        for place in (self._anchor, self._cursor):
            if place and (place[0] >= len(self.document.items)):
                self._anchor = self._cursor = None
                return
        if self._anchor and self._cursor and max(self._anchor, self._cursor)[0] > first_changed:
            limit = self.document.items[max(self._anchor, self._cursor)[0]].length
            if max(self._anchor, self._cursor)[1] > limit:
                self._anchor = self._cursor = None

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._run_clock()
        self._all_dirty = self._all_dirty or bool(self._dirty) or bool(self._session.paused_s)
        self._refresh()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._clock.stop()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    # --- layout and scrolling --------------------------------------------------------------------

    def _column(self) -> tuple[int, int]:
        return column_of(self.width(), self.window().width())

    def _arrange(self) -> None:
        """Lay out what is in view, set the scroll bar, keep what the user reads in its place."""
        if not self.isVisible():
            return
        document, bar = self.document, self.verticalScrollBar()
        height = self.viewport().height()
        reference, where = self._reference(bar.value())
        document.set_width(self._column()[1])
        value = float(bar.value())
        for _ in range(8):  # heights that were guesses may bring more into view
            value = self._wanted_value(value, reference, where)
            if not document.lay_out(value - 40, value + height + 40):
                break
        value = self._wanted_value(value, reference, where)
        self._moving = True
        bar.setPageStep(height)
        bar.setRange(0, max(0, round(document.total - height)))
        bar.setValue(round(value))
        self._last_value = bar.value()
        self._moving = False
        self._place_widgets()

    def _reference(self, value: int) -> tuple[Item | None, float]:
        """The first item in full view, and how far below the top it stands."""
        document = self.document
        if self.following or not document.items:
            return None, 0.0
        index = document.index_at(value)
        if document.tops[index] < value and index + 1 < len(document.items):
            bottom = document.tops[index] + document.items[index].height
            if bottom < value + self.viewport().height() * 0.5:
                index += 1
        return document.items[index], document.tops[index] - value

    def _wanted_value(self, value: float, reference: Item | None, where: float) -> float:
        document = self.document
        most = max(0.0, document.total - self.viewport().height())
        if self.following:
            return most
        if reference is not None:
            guess = document.index_at(value)
            index = self._find(reference, guess)
            if index >= 0:
                value = document.tops[index] - where
        return max(0.0, min(value, most))

    def _find(self, item: Item, near: int) -> int:
        items = self.document.items
        for distance in range(len(items)):
            for index in (near + distance, near - distance):
                if 0 <= index < len(items) and items[index] is item:
                    return index
        return -1

    @Slot(int)
    def _on_scrolled(self, value: int) -> None:
        if not self._moving:
            if value < self._last_value:
                self.following = False
            if value >= self.verticalScrollBar().maximum() - AT_END_PX:
                self.following = True
            self._last_value = value
            self._arrange()
        self.viewport().update()

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        """All painting goes through `paintEvent`; nothing is moved on the screen."""

    @Slot()
    def jump_to_end(self) -> None:
        self.following = True
        self._arrange()
        self.viewport().update()

    def _place_widgets(self) -> None:
        """Called after each layout; a view with buttons over the painting moves them here."""

    # --- painting --------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self.viewport())
        area = event.rect()
        painter.fillRect(area, theme().color("background.content"))
        document = self.document
        if not document.items:
            return
        left, width = self._column()
        value = self.verticalScrollBar().value()
        first, last = self._selection()
        index = document.index_at(value + area.top())
        while index < len(document.items):
            y = document.tops[index] - value
            if y > area.bottom():
                break
            item = document.items[index]
            item.ensure(document.width)
            if item.is_user:
                self._paint_ground(painter, item, left, y, width)
            selected = self._selected_in(index, item, first, last)
            painter.save()
            painter.translate(left, round(y))
            clip = QRectF(-left, area.top() - y, self.viewport().width(), area.height() + 1)
            item.paint(painter, clip, selected)
            painter.restore()
            index += 1
        self._paint_focus(painter)

    def _paint_ground(self, painter: QPainter, item: Item, left: int, y: float, width: int) -> None:
        """The ground of a user's turn; the parts of a long one join without a seam."""
        box = QRectF(left - USER_INSET, round(y), width + 2 * USER_INSET, item.height)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setClipRect(box)
        box.adjust(0, 0 if item.first_of_user else -20, 0, 0 if item.last_of_user else 20)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme().color("background.fill"))
        radius = theme().size("radius.card")
        painter.drawRoundedRect(box, radius, radius)
        painter.restore()

    def _paint_focus(self, painter: QPainter) -> None:
        if self.hasFocus() and self._focus_by_key:
            painter.setPen(theme().color("accent.focus"))
            painter.drawRect(self.viewport().rect().adjusted(0, 0, -1, -1))
            painter.drawRect(self.viewport().rect().adjusted(1, 1, -2, -2))

    def focusInEvent(self, event: QFocusEvent) -> None:
        reasons = (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason)
        self._focus_by_key = event.reason() in reasons
        super().focusInEvent(event)
        self.viewport().update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.viewport().update()

    # --- selection -------------------------------------------------------------------------------

    def _selection(self) -> tuple[Place | None, Place | None]:
        if self._anchor is None or self._cursor is None or self._anchor == self._cursor:
            return None, None
        return min(self._anchor, self._cursor), max(self._anchor, self._cursor)

    def _selected_in(
        self, index: int, item: Item, first: Place | None, last: Place | None
    ) -> tuple[int, int] | None:
        if first is None or last is None or not first[0] <= index <= last[0]:
            return None
        start = first[1] if index == first[0] else 0
        return start, last[1] if index == last[0] else item.length

    def selected_text(self) -> str:
        first, last = self._selection()
        return self.document.text_between(first, last) if first and last else ""

    def select_all(self) -> None:
        if self.document.items:
            self._anchor, self._cursor = (0, 0), self.document.end()
            self.viewport().update()

    def copy_selection(self) -> None:
        text = self.selected_text()
        if text:
            QGuiApplication.clipboard().setText(text)
