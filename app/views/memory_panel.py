"""MemoryPanel: the pool beside the chats. Figures, grid, caption and legend, laid out by height."""

from __future__ import annotations

from weakref import WeakSet

from PySide6.QtCore import QEvent, QRect, QSize, Qt, Signal, Slot
from PySide6.QtGui import QFontMetrics, QKeyEvent, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QHBoxLayout, QLabel, QToolButton, QWidget

from app.render.chip import ChipState
from app.render.figures import block_size_text, count_text
from app.render.theme import theme
from app.state.intents import Intents
from app.state.pool import OwnerRow, PoolModel
from app.state.session import Session, Sessions
from app.state.status import AppStatus
from app.views.block_grid import BlockGrid
from app.views.buttons import icon_button, refresh_icons
from app.views.empty_words import EmptyWords
from app.views.grid_view import MARGIN
from app.views.legend import PADDING, ROW_PX, Legend, LegendHead, LegendRow, folded
from app.views.memory_figures import HEIGHT as FIGURES_PX
from app.views.memory_figures import MemoryFigures
from app.views.memory_notes import MemoryNotes, notes_of

HEAD_PX = 40
FIGURES_TOP = HEAD_PX + 12
GRID_TOP = FIGURES_TOP + FIGURES_PX + 12
CAPTION_PX = 32  # a line of 16 with 8 around it
LEGEND_ROWS_KEPT = 3  # in a low window the rest scrolls
LEAST_GRID_PX = 192
LEAST_FOOT_PX = 4
EMPTY_PX = 8 + 24 + 3 * 22
GONE_CHAT = "A deleted chat"


class MemoryPanel(QWidget):
    """The memory panel.

    Signals:
        close_requested: the button that hides the panel.
    """

    close_requested = Signal()

    def __init__(
        self,
        pool: PoolModel,
        sessions: Sessions,
        intents: Intents,
        status: AppStatus,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._pool, self._sessions, self._status = pool, sessions, status
        self._is_fold_open = False
        self._order: list[int] = []  # owners as the legend lists them
        self._order_of: list[tuple[int, bool]] = []  # (owner, in use) when it was sorted
        self._heard: WeakSet[Session] = WeakSet()
        self._rules: list[int] = []  # heights at which a hairline runs
        self._caption = QRect()
        self.setObjectName("memory_panel")
        self._build_head()
        self._figures = MemoryFigures(self)
        self._grid = BlockGrid(pool, self.title_of, self)
        self._legend_head = LegendHead(self)
        self._legend = Legend(self)
        self._notes = MemoryNotes(self)
        self._empty = EmptyWords(self)
        self._connect(intents)
        self._sync()

    def sizeHint(self) -> QSize:
        return QSize(416, 760)

    def minimumSizeHint(self) -> QSize:
        return QSize(288, 360)

    @property
    def grid(self) -> BlockGrid:
        return self._grid

    @property
    def legend(self) -> Legend:
        return self._legend

    @property
    def notes(self) -> MemoryNotes:
        return self._notes

    @property
    def figures(self) -> MemoryFigures:
        return self._figures

    def title_of(self, owner: int) -> str:
        """The title of the chat that has this owner number."""
        session = self._session_of(owner)
        return session.title if session else GONE_CHAT

    # --- building ---------------------------------------------------------------------------

    def _build_head(self) -> None:
        self._head = QWidget(self)
        row = QHBoxLayout(self._head)
        row.setContentsMargins(PADDING, 0, 12, 0)
        row.setSpacing(4)
        title = QLabel("Memory", self._head)
        title.setFont(theme().font("base", "semibold"))
        row.addWidget(title)
        row.addStretch()
        self._show_all = self._button("list-filter", "Show all chats (Esc)")
        self._show_all.setCheckable(True)
        self._zoom_out = self._button("zoom-out", "Smaller tiles (−)")  # noqa: RUF001
        self._zoom_in = self._button("zoom-in", "Larger tiles (+)")
        self._close = self._button("panel-right", "Hide the memory panel")
        for button in (self._show_all, self._zoom_out, self._zoom_in, self._close):
            row.addWidget(button)

    def _button(self, picture: str, name: str) -> QToolButton:
        return icon_button(picture, name, self._head)

    def _connect(self, intents: Intents) -> None:
        self._pool.changed.connect(self._sync)
        self._pool.filter_changed.connect(self._sync)
        self._status.changed.connect(self._sync)
        self._sessions.inserted.connect(self._on_inserted)
        self._sessions.removed.connect(self._sync)
        for session in self._sessions.all:
            self._hear(session)
        self._grid.owner_chosen.connect(self.show_only)
        self._grid.layout_changed.connect(self._arrange)
        self._legend.owner_chosen.connect(self.show_only)
        self._legend.fold_toggled.connect(self._toggle_fold)
        self._legend.chat_opened.connect(intents.open_chat)
        self._show_all.clicked.connect(self._on_show_all)
        self._zoom_in.clicked.connect(self._on_zoom_in)
        self._zoom_out.clicked.connect(self._on_zoom_out)
        self._close.clicked.connect(self.close_requested)

    # --- what was asked for -----------------------------------------------------------------

    @Slot(int)
    def show_only(self, owner: int) -> None:
        """Dim all blocks but those of one owner; -1 ends it."""
        self._pool.set_filter_owner(owner if owner >= 0 else None)

    @Slot()
    def _on_show_all(self) -> None:
        self.show_only(-1)

    @Slot()
    def _on_zoom_in(self) -> None:
        self._grid.zoom(1)

    @Slot()
    def _on_zoom_out(self) -> None:
        self._grid.zoom(-1)

    @Slot()
    def _toggle_fold(self) -> None:
        self._is_fold_open = not self._is_fold_open
        self._sync()

    @Slot(int)
    def _on_inserted(self, _index: int) -> None:
        for session in self._sessions.all:
            self._hear(session)
        self._sync()

    def _hear(self, session: Session) -> None:
        if session not in self._heard:  # one that was deleted and came back is heard already
            self._heard.add(session)
            session.changed.connect(self._sync)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self._pool.filter_owner is not None:
            self.show_only(-1)
            return
        super().keyPressEvent(event)

    # --- what is shown ----------------------------------------------------------------------

    @Slot()
    def _sync(self) -> None:
        """Take figures and rows from the models."""
        owner_rows = self._pool.owner_rows()
        self._end_stale_filter({row.owner for row in owner_rows})
        self._figures.set_counts(self._pool.counts, self._pool.block_bytes)
        rows = [self._legend_row(row) for row in self._ordered(owner_rows)]
        self._legend.set_rows(folded(rows, self._is_fold_open))
        self._notes.set_notes(notes_of(self._pool) if rows else [])
        self._show_all.setVisible(self._pool.filter_owner is not None)
        self._show_all.setChecked(self._pool.filter_owner is not None)
        self._set_empty_words()
        self._arrange()
        self.update()

    def _end_stale_filter(self, owners: set[int]) -> None:
        chosen = self._pool.filter_owner
        if chosen is not None and chosen not in owners:
            self.show_only(-1)

    def _ordered(self, rows: list[OwnerRow]) -> list[OwnerRow]:
        """Chats in use before idle ones, the larger first; sorted anew only when a chat comes,
        goes, starts or ends: rows must not move under the pointer."""
        by_owner = {row.owner: row for row in rows}
        classes = [(row.owner, row.in_use > 0) for row in rows]
        if classes != self._order_of:
            self._order_of = classes
            first = sorted(rows, key=lambda row: (row.in_use == 0, -row.in_use, -row.cached))
            self._order = [row.owner for row in first]
        return [by_owner[owner] for owner in self._order]

    def _legend_row(self, row: OwnerRow) -> LegendRow:
        session = self._session_of(row.owner)
        chip: ChipState = "active" if row.in_use else "cached"
        fill = 1.0
        if session and row.in_use and session.fill and self._pool.block_tokens:
            fill = session.fill / self._pool.block_tokens
        return LegendRow(
            owner=row.owner,
            title=session.title if session else GONE_CHAT,
            in_use=row.in_use,
            cached=row.cached,
            num_bytes=row.num_bytes,
            session_id=session.session_id if session else "",
            chip=chip,
            fill=fill,
            is_chosen=row.owner == self._pool.filter_owner,
        )

    def _session_of(self, owner: int) -> Session | None:
        return next((one for one in self._sessions.all if one.owner == owner), None)

    def _set_empty_words(self) -> None:
        title, text = "No chat holds a block yet", ""
        if self._pool.num_blocks:
            text = "Send a message: its chat takes the first tiles as soon as it is read."
        elif self._status.phase == "loading":
            title, text = "The model is loading", "Its memory is shown here when it is ready."
        else:
            title, text = "No model is open", "Open one, and its memory is shown here."
        self._empty.set_words(title, text)

    @property
    def empty_words(self) -> tuple[str, str]:
        """Title and sentence that stand where the legend has nothing to list."""
        return self._empty.words

    @property
    def caption(self) -> tuple[str, str]:
        """The words under the grid, left and right."""
        pool, layout = self._pool, self._grid.view.layout
        if not pool.num_blocks:
            return "", ""
        cells = self._grid.view.cells_in_view()
        first = layout.blocks_of(cells.top() * layout.columns).start
        last = min((cells.bottom() + 1) * layout.columns, layout.num_cells)
        end = layout.blocks_of(last - 1).stop - 1 if last else 0
        right = f"{count_text(first)} – {count_text(end)}"  # noqa: RUF001
        if pool.filter_owner is not None:
            return f"Only {self.title_of(pool.filter_owner)}", right
        if layout.level == "overview":
            return f"{count_text(layout.blocks_per_cell)} blocks in a cell", right
        left = f"{layout.columns} columns, {pool.block_tokens} tokens in a block"
        return f"{left} of {block_size_text(pool.block_bytes)}", right

    # --- layout -----------------------------------------------------------------------------

    @Slot()
    def _arrange(self) -> None:
        """Lay the parts out from the top; in a low window the legend gives way, then the grid."""
        width, height = self.width(), self.height()
        self._head.setGeometry(0, 0, width, HEAD_PX)
        for widget in (self._figures, self._grid):
            widget.setVisible(bool(self._pool.num_blocks))
        if not self._pool.num_blocks:
            self._rules, self._caption = [HEAD_PX - 1], QRect()
            self._arrange_legend(FIGURES_TOP, has_rows=False)
            return
        has_rows = bool(self._legend.rows)
        notes_px = max(ROW_PX, self._notes.wanted_height)
        kept = 1 + EMPTY_PX
        if has_rows:
            kept = 1 + 8 + (1 + LEGEND_ROWS_KEPT) * ROW_PX + notes_px + LEAST_FOOT_PX
        room = height - GRID_TOP + MARGIN - CAPTION_PX - kept
        has_caption = room >= LEAST_GRID_PX
        if not has_caption:
            room = max(LEAST_GRID_PX, room + CAPTION_PX)
        self._figures.setGeometry(PADDING, FIGURES_TOP, width - 2 * PADDING, FIGURES_PX)
        grid_px = self._grid.height_for(width, room)
        left = PADDING - MARGIN
        self._grid.setGeometry(left, GRID_TOP - MARGIN, width - 2 * left, grid_px)
        y = GRID_TOP - 2 * MARGIN + grid_px
        self._caption = QRect()
        if has_caption:
            self._caption = QRect(PADDING, y + 8, width - 2 * PADDING, 16)
            y += CAPTION_PX
        self._rules = [HEAD_PX - 1, y]
        self._arrange_legend(y + 1 + 8, has_rows)
        self.update()

    def _arrange_legend(self, y: int, has_rows: bool) -> None:
        width, height = self.width(), self.height()
        self._zoom_out.setEnabled(self._grid.view.is_zoomed)
        self._zoom_in.setEnabled(bool(self._pool.num_blocks))
        self._empty.setVisible(not has_rows)
        self._empty.setGeometry(PADDING, y, width - 2 * PADDING, max(0, height - y))
        for widget in (self._legend_head, self._legend):
            widget.setVisible(has_rows)
        self._legend_head.setGeometry(0, y, width, ROW_PX)
        y += ROW_PX
        room = max(1, (height - y - LEAST_FOOT_PX) // ROW_PX)  # rows; the notes give way first
        num_rows, num_notes = len(self._legend.rows), len(self._notes.texts)
        num_notes = min(num_notes, max(0, room - min(num_rows, LEGEND_ROWS_KEPT)))
        rows_px = ROW_PX * min(num_rows, room - num_notes)
        notes_px = ROW_PX * num_notes
        self._legend.setGeometry(0, y, width, rows_px)
        self._notes.setVisible(bool(notes_px))
        self._notes.setGeometry(0, y + rows_px, width, notes_px)

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._arrange()
        super().resizeEvent(event)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.PaletteChange:
            refresh_icons(self)
            self.update()
        super().changeEvent(event)

    # --- painting ---------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(self.rect(), theme().color("background.chrome"))
        for y in self._rules:
            painter.fillRect(0, y, self.width(), 1, theme().color("hairline"))
        font = theme().font("small")
        painter.setFont(font)
        middle = Qt.AlignmentFlag.AlignVCenter
        if not self._caption.isNull():
            left, right = self.caption
            room = self._caption.width() - QFontMetrics(font).horizontalAdvance(right) - 12
            if QFontMetrics(font).horizontalAdvance(left) > room:
                left = left.rsplit(" of ", 1)[0]
            left = QFontMetrics(font).elidedText(left, Qt.TextElideMode.ElideRight, room)
            painter.setPen(theme().color("text.tertiary"))
            painter.drawText(self._caption, middle, left)
            painter.drawText(self._caption, middle | Qt.AlignmentFlag.AlignRight, right)
