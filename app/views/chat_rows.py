"""How a chat looks as a row of the list, wide or as a rail of chips."""

from __future__ import annotations

from PySide6.QtCore import (
    QEvent,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    QPointF,
    QRect,
    QRectF,
    QSize,
    Qt,
)
from PySide6.QtGui import QFontMetricsF, QHelpEvent, QKeyEvent, QPainter, QPen
from PySide6.QtWidgets import (
    QAbstractItemDelegate,
    QAbstractItemView,
    QLineEdit,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QToolTip,
    QWidget,
)

from app.render.chip import paint_chip
from app.render.icons import icon
from app.render.plain import tool_tip
from app.render.theme import theme
from app.state.session_list import Chip, Role

Index = QModelIndex | QPersistentModelIndex
SIDE = 8  # space between the list's edge and a row's ground
GROUP_HEIGHT = 36
BUSY = ("waiting", "reading", "running", "paused")


class ChatRow(QStyledItemDelegate):
    """Paints chip, title and marks; edits the title in place."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.is_rail = False

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:
        if index.data(Role.KIND) == "group":
            return QSize(10, 9 if self.is_rail else GROUP_HEIGHT)
        return QSize(10, int(theme().size("list_row")))

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        if index.data(Role.KIND) == "group":
            self._paint_group(painter, option.rect, index)
        else:
            self._paint_chat(painter, option, index)
        painter.restore()

    def _paint_group(self, painter: QPainter, box: QRect, index: Index) -> None:
        if self.is_rail:
            if index.row():
                y = box.center().y()
                painter.fillRect(box.left() + 12, y, box.width() - 24, 1, theme().color("hairline"))
            return
        painter.setFont(theme().font("small", "regular"))
        painter.setPen(theme().color("text.secondary"))
        flags = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignBottom
        painter.drawText(box.adjusted(16, 0, -16, -8), int(flags), str(index.data()))

    def _paint_chat(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        box = QRectF(option.rect).adjusted(SIDE, 0, -SIDE, 0)
        self._paint_ground(painter, option, index, box)
        chip = index.data(Role.CHIP)
        assert isinstance(chip, Chip)
        size = theme().size("chip")
        if self.is_rail:
            place = QPointF(box.center().x() - size / 2, box.center().y() - size / 2)
            paint_chip(painter, place, chip.owner, chip.state, chip.fill)
            if index.data(Role.UNREAD):
                self._paint_dot(painter, QPointF(box.right() - 5, box.top() + 8))
            return
        place = QPointF(box.left() + 8, box.center().y() - size / 2)
        paint_chip(painter, place, chip.owner, chip.state, chip.fill)
        right = self._paint_marks(painter, index, box)
        self._paint_title(
            painter,
            index,
            QRectF(box.left() + 28, box.top(), right - box.left() - 34, box.height()),
        )

    def _paint_ground(
        self, painter: QPainter, option: QStyleOptionViewItem, index: Index, box: QRectF
    ) -> None:
        hovered = option.state & QStyle.StateFlag.State_MouseOver
        colour = None
        if index.data(Role.CURRENT):
            colour = theme().color("background.selected")
        elif hovered:
            colour = theme().color("background.fill")
        if colour is not None:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(colour)
            painter.drawRoundedRect(box, 6, 6)
        if option.state & QStyle.StateFlag.State_HasFocus:
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.setPen(QPen(theme().color("accent.focus"), 2))
            painter.drawRoundedRect(box.adjusted(1, 1, -1, -1), 5, 5)

    def _paint_marks(self, painter: QPainter, index: Index, box: QRectF) -> float:
        """State, and the pin of a chat kept in memory. Returns where the title must end."""
        right = self._paint_state(painter, index, box)
        if not index.data(Role.PINNED):
            return right
        left = right - (12 if right == box.right() - 8 else 18)
        mark = icon("pin", "text.tertiary", 12)
        mark.paint(painter, int(left), int(box.center().y() - 6), 12, 12)
        return left

    def _paint_state(self, painter: QPainter, index: Index, box: QRectF) -> float:
        """Unread dot, state in words or its icon. Returns where what stands before it must end."""
        right, middle = box.right() - 8, box.center().y()
        status = index.data(Role.STATUS)
        if status in ("failed", "paused"):
            name, colour = {
                "failed": ("triangle-alert", "error.base"),
                "paused": ("pause", "text.secondary"),
            }[status]
            icon(name, colour, 14).paint(painter, int(right - 14), int(middle - 7), 14, 14)
            return right - 14
        words = str(index.data(Role.STATUS_TEXT) or "")
        if status in ("waiting", "reading") and words:
            font = theme().font("small", "regular")
            metrics, most = QFontMetricsF(font), box.width() * 0.55
            words = metrics.elidedText(words, Qt.TextElideMode.ElideRight, most - 1)
            room = metrics.horizontalAdvance(words) + 1
            painter.setFont(font)
            painter.setPen(theme().color("text.secondary"))
            flags = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
            painter.drawText(QRectF(right - room, box.top(), room, box.height()), int(flags), words)
            return right - room
        if index.data(Role.UNREAD):
            self._paint_dot(painter, QPointF(right - 3, middle))
            return right - 8
        return right

    def _paint_dot(self, painter: QPainter, centre: QPointF) -> None:
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(theme().color("accent.base"))
        radius = theme().size("unread_dot") / 2
        painter.drawEllipse(centre, radius, radius)

    def _paint_title(self, painter: QPainter, index: Index, box: QRectF) -> None:
        current, unread = index.data(Role.CURRENT), index.data(Role.UNREAD)
        weight = "semibold" if unread else "medium" if current else "regular"
        strong = current or unread or index.data(Role.STATUS) in BUSY
        font = theme().font("base", weight)
        painter.setFont(font)
        painter.setPen(theme().color("text.primary" if strong else "text.secondary"))
        metrics = QFontMetricsF(font)
        title = str(index.data()).replace("\n", " ")[:300]
        title = metrics.elidedText(title, Qt.TextElideMode.ElideRight, box.width())
        flags = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(box, int(flags), title)

    def helpEvent(
        self,
        event: QHelpEvent,
        view: QAbstractItemView,
        option: QStyleOptionViewItem,
        index: Index,
    ) -> bool:
        """The whole title; Qt's own tip would take tags in it for HTML."""
        if event.type() != QEvent.Type.ToolTip:
            return bool(super().helpEvent(event, view, option, index))
        words = str(index.data(Qt.ItemDataRole.ToolTipRole) or "")[:600]
        QToolTip.showText(event.globalPos(), tool_tip(words), view, option.rect)
        return True

    # --- renaming in place -------------------------------------------------------------------

    def createEditor(self, parent: QWidget, option: QStyleOptionViewItem, index: Index) -> QWidget:
        editor = QLineEdit(parent)
        editor.setAccessibleName("New title of the chat")
        editor.setMaxLength(200)
        return editor

    def setEditorData(self, editor: QWidget, index: Index) -> None:
        """Once: a row that changes (its chip fills) asks again, and must not undo the typing."""
        assert isinstance(editor, QLineEdit)
        if not editor.property("is_filled"):
            editor.setProperty("is_filled", True)
            editor.setText(str(index.data()))
            editor.selectAll()

    def updateEditorGeometry(
        self, editor: QWidget, option: QStyleOptionViewItem, index: Index
    ) -> None:
        editor.setGeometry(option.rect.adjusted(SIDE + 24, 1, -SIDE, -1))

    def setModelData(self, editor: QWidget, model: object, index: Index) -> None:
        """The view asks for the new title; the model changes when the answer comes."""
        assert isinstance(editor, QLineEdit)
        parent = self.parent()
        title = editor.text().strip()
        if title and title != index.data() and parent is not None and hasattr(parent, "rename"):
            parent.rename(str(index.data(Role.SESSION_ID)), title)

    def eventFilter(self, editor: QObject, event: QEvent) -> bool:
        is_escape = (
            isinstance(event, QKeyEvent)
            and event.type() == QEvent.Type.KeyPress
            and event.key() == Qt.Key.Key_Escape
        )
        if is_escape and isinstance(editor, QLineEdit):
            self.closeEditor.emit(editor, QAbstractItemDelegate.EndEditHint.RevertModelCache)
            return True
        return bool(super().eventFilter(editor, event))
