"""TranscriptView: the transcript as the user handles it: selection, links, buttons, keys."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPoint, QPointF, QRect, Qt, QUrl, Slot
from PySide6.QtGui import (
    QContextMenuEvent,
    QDesktopServices,
    QGuiApplication,
    QHelpEvent,
    QKeyEvent,
    QKeySequence,
    QMouseEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QMenu, QPushButton, QToolTip, QWidget

from app.render.icons import icon
from app.render.plain import for_qt, tool_tip
from app.state.intents import Intents
from app.state.session import Session
from app.views.buttons import picture_of, refresh_icons
from app.views.transcript_actions import ReplyActions
from app.views.transcript_canvas import TranscriptCanvas
from app.views.transcript_code import CodeItem
from app.views.transcript_document import Place
from app.views.transcript_items import Item
from app.views.transcript_meta import MetaItem
from app.views.transcript_notes import NoteItem


class TranscriptView(TranscriptCanvas):
    """Shows one session; asks through `intents`."""

    _is_built = False

    def __init__(self, session: Session, intents: Intents, parent: QWidget | None = None) -> None:
        super().__init__(session, parent)
        self._intents = intents
        self._hovered_turn = -1
        self._build()
        self._is_built = True

    def _build(self) -> None:
        self.setAccessibleName("Conversation")
        self.viewport().setMouseTracking(True)
        self.actions_bar = ReplyActions(self.viewport())
        self.actions_bar.copy_wanted.connect(self._copy_reply)
        self.actions_bar.regenerate_wanted.connect(self._regenerate)
        self.actions_bar.version_wanted.connect(self._choose_version)
        self.retry_button = QPushButton("Retry", self.viewport())
        self.retry_button.setProperty("state", "error")
        self.retry_button.setProperty("compact", "true")
        self.retry_button.setAccessibleName("Retry the reply")
        self.retry_button.clicked.connect(self._regenerate)
        self.retry_button.hide()
        self.jump_button = QPushButton("Jump to latest", self.viewport())
        picture_of(self.jump_button, "chevron-down")
        self.jump_button.setAccessibleName("Jump to latest")
        self.jump_button.clicked.connect(self.jump_to_end)
        self.jump_button.hide()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        types = (QEvent.Type.StyleChange, QEvent.Type.PaletteChange)
        if self._is_built and event.type() in types:
            self._on_theme()

    def _on_theme(self) -> None:
        refresh_icons(self)
        self._arrange()
        self.viewport().update()

    # --- real widgets over the painting ----------------------------------------------------------

    def _place_widgets(self) -> None:
        self._place_actions()
        self._place_retry()
        bar, view = self.verticalScrollBar(), self.viewport()
        far = not self.following and bar.maximum() - bar.value() > 40
        if far:
            self.jump_button.adjustSize()
            left = (view.width() - self.jump_button.width()) // 2
            self.jump_button.move(left, view.height() - self.jump_button.height() - 12)
            self.jump_button.raise_()
        self.jump_button.setVisible(far)

    def _turn_for_actions(self) -> int:
        turns = self._session.record.turns
        chosen = self._hovered_turn if 0 <= self._hovered_turn < len(turns) else len(turns) - 1
        reply = turns[chosen].reply if turns else None
        if reply is None or reply.state == "streaming":
            return -1
        return chosen

    def _place_actions(self) -> None:
        turn = self._turn_for_actions()
        index = self._meta_index(turn)
        for item in self.document.items[max(0, index) :] if index >= 0 else []:
            if isinstance(item, MetaItem):
                item.actions_width = 0
        if index < 0 or not self._is_in_view(index):
            self.actions_bar.hide()
            return
        turns = self._session.record.turns
        can_regenerate = turn == len(turns) - 1 and not self._session.is_busy
        self.actions_bar.show_turn(turn, turns[turn], can_regenerate)
        left, width = self._column()
        item = self.document.items[index]
        assert isinstance(item, MetaItem)
        item.actions_width = self.actions_bar.width()
        y = self.document.tops[index] - self.verticalScrollBar().value()
        top = y + (item.height - self.actions_bar.height()) / 2
        self.actions_bar.move(left + width - self.actions_bar.width(), round(top))
        self.actions_bar.show()

    def _meta_index(self, turn: int) -> int:
        """Item of the line under a turn's reply, -1 when there is none."""
        if turn < 0 or turn >= len(self._session.record.turns) or not self.document.items:
            return -1
        index = self.document.last_item_of(turn)
        return index if isinstance(self.document.items[index], MetaItem) else -1

    def _is_in_view(self, index: int) -> bool:
        y = self.document.tops[index] - self.verticalScrollBar().value()
        return -self.document.items[index].height < y < self.viewport().height()

    def _place_retry(self) -> None:
        for index in range(len(self.document.items) - 1, -1, -1):
            item = self.document.items[index]
            if isinstance(item, NoteItem) and item.has_button and self._is_in_view(index):
                left, width = self._column()
                y = self.document.tops[index] - self.verticalScrollBar().value()
                self.retry_button.adjustSize()
                right = left + width - self.retry_button.width()
                offset = (28 - self.retry_button.height()) // 2
                self.retry_button.move(right, round(y) + offset)
                self.retry_button.show()
                return
            if item.is_user:
                break
        self.retry_button.hide()

    @Slot(int)
    def _copy_reply(self, turn_index: int) -> None:
        reply = self._session.record.turns[turn_index].reply
        if reply is not None:
            QGuiApplication.clipboard().setText(for_qt(reply.text))
            self._say("Copied")

    @Slot()
    def _regenerate(self) -> None:
        self._intents.regenerate.emit(self._session.session_id)

    @Slot(int, int)
    def _choose_version(self, turn_index: int, version: int) -> None:
        self._intents.choose_version.emit(self._session.session_id, turn_index, version)

    def _say(self, words: str) -> None:
        QToolTip.showText(self.cursor().pos(), words, self, self.rect(), 1200)

    def viewportEvent(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            self._show_details(event)
            return True
        return bool(super().viewportEvent(event))

    def _show_details(self, event: QHelpEvent) -> None:
        """Over the line under a reply: all that is known of it."""
        item = self._item_at(QPointF(event.pos()))
        if not isinstance(item, MetaItem) or not item.tip:
            QToolTip.hideText()
            return
        left, width = self._column()
        top = self.document.tops[self._meta_index(item.turn_index)]
        line = QRect(left, round(top - self.verticalScrollBar().value()), width, round(item.height))
        QToolTip.showText(event.globalPos(), tool_tip(item.tip), self.viewport(), line)

    # --- mouse and keys --------------------------------------------------------------------------

    def wheelEvent(self, event: QWheelEvent) -> None:
        sideways = event.angleDelta().x()
        if event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            sideways = sideways or event.angleDelta().y()
        item = self._item_at(event.position())
        if sideways and isinstance(item, CodeItem) and item.max_scroll_x:
            item.scroll_x = max(0.0, min(item.max_scroll_x, item.scroll_x - sideways / 2))
            self.viewport().update()
            return
        if event.angleDelta().y() > 0 and self.verticalScrollBar().maximum() > 0:
            self.following = False
        super().wheelEvent(event)

    def _local(self, position: QPointF) -> tuple[int, float, float]:
        """Item under a point of the viewport, and the point in that item."""
        y = position.y() + self.verticalScrollBar().value()
        index = self.document.index_at(y)
        return index, position.x() - self._column()[0], y - self.document.tops[index]

    def _item_at(self, position: QPointF) -> Item | None:
        if not self.document.items:
            return None
        index, _, y = self._local(position)
        item = self.document.items[index]
        return item if 0 <= y <= item.height else None

    def _place_at(self, position: QPointF) -> Place:
        index, x, y = self._local(position)
        item = self.document.items[index]
        if y > item.height:
            return index, item.length
        return index, min(item.length, item.hit(x, y))

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() != Qt.MouseButton.LeftButton or not self.document.items:
            return
        index, x, y = self._local(event.position())
        item = self.document.items[index]
        if isinstance(item, CodeItem) and self._use_tool(item, item.tool_at(x, y)):
            return
        place = self._place_at(event.position())
        extends = event.modifiers() & Qt.KeyboardModifier.ShiftModifier
        if not (extends and self._anchor):
            self._anchor = place
        self._cursor = place
        self.viewport().update()

    def _use_tool(self, item: CodeItem, tool: str) -> bool:
        if tool == "copy":
            QGuiApplication.clipboard().setText(item.text)
            self._say("Copied")
        elif tool == "wrap":
            self.document.set_wrap(not self.document.wrap_code)
            self._arrange()
            self.viewport().update()
        return bool(tool)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if not self.document.items:
            return
        if event.buttons() & Qt.MouseButton.LeftButton and self._anchor is not None:
            self._cursor = self._place_at(event.position())
            self._scroll_while_dragging(event.position().y())
            self.viewport().update()
            return
        self._hover(event.position())

    def _scroll_while_dragging(self, y: float) -> None:
        bar = self.verticalScrollBar()
        if y < 0:
            self.following = False
            bar.setValue(bar.value() + max(-60, round(y)))
        elif y > self.viewport().height():
            bar.setValue(bar.value() + min(60, round(y - self.viewport().height())))

    def _hover(self, position: QPointF) -> None:
        index, x, y = self._local(position)
        item = self.document.items[index]
        shape = Qt.CursorShape.ArrowCursor
        if item.tool_at(x, y) or item.link_at(x, y):
            shape = Qt.CursorShape.PointingHandCursor
        elif item.length and 0 <= y <= item.height and -4 <= x <= self._column()[1] + 4:
            shape = Qt.CursorShape.IBeamCursor
        self.viewport().setCursor(shape)
        turn = self.document.turn_of(index)
        if turn != self._hovered_turn:
            self._hovered_turn = turn
            self._place_actions()
            self.viewport().update()

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self._hovered_turn = -1
        if self.document.items:
            self._place_actions()
            self.viewport().update()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() != Qt.MouseButton.LeftButton or self._selection()[0] is not None:
            return
        if self.document.items:
            index, x, y = self._local(event.position())
            link = self.document.items[index].link_at(x, y)
            if link.startswith(("http://", "https://", "mailto:")):
                QDesktopServices.openUrl(QUrl(link))

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        """Select the word."""
        if not self.document.items:
            return
        index, offset = self._place_at(event.position())
        text = self.document.items[index].text
        start = end = min(offset, len(text))
        while start > 0 and (text[start - 1].isalnum() or text[start - 1] == "_"):
            start -= 1
        while end < len(text) and (text[end].isalnum() or text[end] == "_"):
            end += 1
        self._anchor, self._cursor = (index, start), (index, end)
        self.viewport().update()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        bar = self.verticalScrollBar()
        steps = {
            Qt.Key.Key_Up: bar.value() - bar.singleStep(),
            Qt.Key.Key_Down: bar.value() + bar.singleStep(),
            Qt.Key.Key_PageUp: bar.value() - bar.pageStep() + 44,
            Qt.Key.Key_PageDown: bar.value() + bar.pageStep() - 44,
            Qt.Key.Key_Home: 0,
            Qt.Key.Key_End: bar.maximum(),
        }
        plain = event.modifiers() in (
            Qt.KeyboardModifier.NoModifier,
            Qt.KeyboardModifier.KeypadModifier,
        )
        if event.matches(QKeySequence.StandardKey.Copy):
            self.copy_selection()
        elif event.matches(QKeySequence.StandardKey.SelectAll):
            self.select_all()
        elif plain and event.key() == Qt.Key.Key_End:
            self.jump_to_end()
        elif plain and event.key() in steps:
            bar.setValue(steps[Qt.Key(event.key())])
        else:
            super().keyPressEvent(event)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        if self.document.items:
            self._context_menu(QPointF(event.pos()), event.globalPos())

    def _context_menu(self, position: QPointF, at: QPoint) -> None:
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        copy = menu.addAction(icon("copy"), "Copy\tCtrl+C", self.copy_selection)
        copy.setEnabled(bool(self.selected_text()))
        item = self._item_at(position)
        if isinstance(item, CodeItem):
            menu.addAction("Copy code block", lambda: self._use_tool(item, "copy"))
        turn = self.document.turn_of(self._local(position)[0])
        if turn >= 0 and self._session.record.turns[turn].reply is not None:
            menu.addAction("Copy reply", lambda: self._copy_reply(turn))
        menu.addAction("Select all\tCtrl+A", self.select_all)
        menu.popup(at)  # exec() inside a coroutine would break the event loop
