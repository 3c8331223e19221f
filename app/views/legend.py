"""Legend: which chat holds how many blocks, one row each; a click shows only its blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import (
    QAbstractListModel,
    QEvent,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    QRect,
    QRectF,
    QSize,
    Qt,
    Signal,
    Slot,
)
from PySide6.QtGui import QFontMetrics, QKeyEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QListView, QStyle, QStyledItemDelegate, QStyleOptionViewItem, QWidget

from app.render.chip import ChipState, paint_chip
from app.render.figures import count_text, memory_text
from app.render.icons import pixmap
from app.render.theme import theme

ROW_PX = 24
PADDING = 16
TITLE_AT = 36
MAX_FOLDED_ROWS = 6  # more rows than this, and idle chats share one
Index = QModelIndex | QPersistentModelIndex


@dataclass(frozen=True, slots=True)
class LegendRow:
    """One line. `owner` is None on the line that stands for the `num_folded` chats folded in."""

    owner: int | None
    title: str
    in_use: int
    cached: int
    num_bytes: int
    session_id: str = ""
    chip: ChipState = "none"
    fill: float = 1.0
    is_chosen: bool = False
    is_open: bool = False  # the fold


def folded(rows: list[LegendRow], is_open: bool) -> list[LegendRow]:
    """Fold the idle chats past the fifth row into one line; open, the line comes last."""
    idle = [row for row in rows if not row.in_use]
    busy = len(rows) - len(idle)
    keep = max(0, MAX_FOLDED_ROWS - 1 - busy)
    rest = idle[keep:]
    if len(rows) <= MAX_FOLDED_ROWS or len(rest) < 2:
        return rows
    cached, num_bytes = sum(row.cached for row in rest), sum(row.num_bytes for row in rest)
    if is_open:
        return [*rows, LegendRow(None, "Show fewer", 0, 0, 0, is_open=True)]
    line = LegendRow(None, f"{len(rest)} more, cached", 0, cached, num_bytes)
    return [*rows[: busy + keep], line]


class LegendModel(QAbstractListModel):
    """The rows, kept in the order in which they first came, so that none moves while one reads."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._rows: list[LegendRow] = []

    @property
    def rows(self) -> list[LegendRow]:
        return list(self._rows)

    def set_rows(self, rows: list[LegendRow]) -> None:
        """Show these; only a change of chats resets the list."""
        if [row.owner for row in rows] != [row.owner for row in self._rows]:
            self.beginResetModel()
            self._rows = rows
            self.endResetModel()
            return
        changed = [i for i, row in enumerate(rows) if row != self._rows[i]]
        self._rows = rows
        if changed:
            self.dataChanged.emit(self.index(changed[0]), self.index(changed[-1]))

    def row(self, index: Index) -> LegendRow:
        return self._rows[index.row()]

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 (Qt's signature)
        return 0 if parent.isValid() else len(self._rows)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        row = self.row(index)
        if role == Qt.ItemDataRole.DisplayRole:
            return row.title
        if role == Qt.ItemDataRole.AccessibleTextRole:
            words = f"{row.title}, {row.in_use} blocks in use, {row.cached} cached"
            return f"{words}, {memory_text(row.num_bytes)}"
        return None


def column_edges(width: int) -> tuple[int, int, int]:
    """Right edges of In use, Cached and Memory in a legend of this width."""
    right = width - PADDING
    memory, cached = (72, 60) if width >= 400 else (62, 52)
    return right - memory - cached, right - memory, right


def title_width(width: int) -> int:
    """Room for a title before the first column of figures."""
    return column_edges(width)[0] - 40 - TITLE_AT


class LegendHead(QWidget):
    """The names of the columns."""

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setFont(theme().font("small"))
        painter.setPen(theme().color("text.secondary"))
        middle = Qt.AlignmentFlag.AlignVCenter
        rect = self.rect()
        painter.drawText(rect.adjusted(PADDING, 0, 0, 0), middle, "Chat")
        names = ("In use", "Cached", "Memory")
        for edge, name in zip(column_edges(self.width()), names, strict=True):
            flags = middle | Qt.AlignmentFlag.AlignRight
            painter.drawText(QRect(0, 0, edge, rect.height()), flags, name)


class LegendDelegate(QStyledItemDelegate):
    """Paints a row: chip, title, figures."""

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        return QSize(0, ROW_PX)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        model = index.model()
        assert isinstance(model, LegendModel)
        row, rect = model.row(index), QRect(option.rect)
        if option.widget is not None:
            rect.setWidth(option.widget.width())  # a scroll bar stands in the padding
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self._paint_back(painter, option, row)
        self._paint_title(painter, rect, row)
        self._paint_figures(painter, rect, row)
        painter.restore()

    def _paint_back(self, painter: QPainter, option: QStyleOptionViewItem, row: LegendRow) -> None:
        back = QRectF(option.rect).adjusted(8, 0, -8, 0)
        radius = theme().size("radius.menu_item")
        fill = None
        if row.is_chosen:
            fill = "background.selected"
        elif option.state & QStyle.StateFlag.State_MouseOver:
            fill = "background.fill"
        if fill:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(theme().color(fill))
            painter.drawRoundedRect(back, radius, radius)
        if option.state & QStyle.StateFlag.State_HasFocus:
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(theme().color("accent.focus"), 2))
            painter.drawRoundedRect(back.adjusted(1, 1, -1, -1), radius, radius)

    def _paint_title(self, painter: QPainter, rect: QRect, row: LegendRow) -> None:
        mark = QRect(rect.left() + PADDING, rect.top(), 12, rect.height())
        if row.owner is None:
            name = "chevron-down" if row.is_open else "chevron-right"
            ratio = painter.device().devicePixelRatioF()
            top = mark.center().y() - 6
            painter.drawPixmap(mark.left() - 1, top, pixmap(name, "text.secondary", 14, ratio))
        else:
            paint_chip(painter, mark, row.owner, row.chip, row.fill)
        font = theme().font("base", "medium" if row.is_chosen else "regular")
        painter.setFont(font)
        is_idle = row.owner is None or (not row.in_use and not row.is_chosen)
        painter.setPen(theme().color("text.secondary" if is_idle else "text.primary"))
        room = rect.adjusted(TITLE_AT, 0, 0, 0)
        room.setWidth(title_width(rect.width()))
        elide = Qt.TextElideMode.ElideRight
        text = QFontMetrics(font).elidedText(row.title, elide, room.width())
        painter.drawText(room, Qt.AlignmentFlag.AlignVCenter, text)

    def _paint_figures(self, painter: QPainter, rect: QRect, row: LegendRow) -> None:
        if row.is_open:
            return
        painter.setFont(theme().font("small"))
        texts = (
            count_text(row.in_use) if row.in_use else "–",  # noqa: RUF001 (a dash: none)
            count_text(row.cached) if row.cached else "–",  # noqa: RUF001
            memory_text(row.num_bytes),
        )
        tones = (
            "text.primary" if row.in_use else "text.tertiary",
            "text.primary" if row.cached else "text.tertiary",
            "text.secondary",
        )
        flags = Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight
        edges = column_edges(rect.width())
        for edge, text, tone in zip(edges, texts, tones, strict=True):
            painter.setPen(theme().color(tone))
            place = QRect(rect.left(), rect.top(), edge, rect.height())
            painter.drawText(place, flags, text)


class Legend(QListView):
    """The list of chats that hold blocks.

    Signals:
        owner_chosen(owner): show only its blocks; -1: show all again.
        chat_opened(session_id): a double click.
        fold_toggled: the line of idle chats was clicked.
    """

    owner_chosen = Signal(int)
    chat_opened = Signal(str)
    fold_toggled = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._model = LegendModel(self)
        self.setModel(self._model)
        self.setItemDelegate(LegendDelegate(self))
        self.setSelectionMode(QListView.SelectionMode.NoSelection)
        self.setEditTriggers(QListView.EditTrigger.NoEditTriggers)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollMode(QListView.ScrollMode.ScrollPerPixel)
        self.setUniformItemSizes(True)
        self.setMouseTracking(True)
        self.setAccessibleName("Chats in memory")
        self.clicked.connect(self._on_clicked)
        self.doubleClicked.connect(self._on_double_clicked)

    @property
    def rows(self) -> list[LegendRow]:
        return self._model.rows

    def set_rows(self, rows: list[LegendRow]) -> None:
        self._model.set_rows(rows)

    @property
    def wanted_height(self) -> int:
        return ROW_PX * len(self._model.rows)

    @Slot(QModelIndex)
    def _on_clicked(self, index: QModelIndex) -> None:
        row = self._model.row(index)
        if row.owner is None:
            self.fold_toggled.emit()
        else:
            self.owner_chosen.emit(-1 if row.is_chosen else row.owner)

    @Slot(QModelIndex)
    def _on_double_clicked(self, index: QModelIndex) -> None:
        session_id = self._model.row(index).session_id
        if session_id:
            self.chat_opened.emit(session_id)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        keys = (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space)
        if event.key() in keys and self.currentIndex().isValid():
            self._on_clicked(self.currentIndex())
            return
        if event.key() == Qt.Key.Key_Escape and any(row.is_chosen for row in self.rows):
            self.owner_chosen.emit(-1)
            return
        super().keyPressEvent(event)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() == QEvent.Type.PaletteChange:
            self.viewport().update()
        super().changeEvent(event)
