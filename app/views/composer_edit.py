"""The text field of the composer: Enter sends, and a very long paste becomes a chip.

A text edit takes seconds for one line of 200 kB. So what is pasted beyond `MAX_PASTE_CHARS`, or
with a line beyond `MAX_LINE_CHARS`, is kept aside unchanged and sent with the message.
"""

from __future__ import annotations

from PySide6.QtCore import QMimeData, Qt, Signal
from PySide6.QtGui import (
    QFocusEvent,
    QKeyEvent,
    QPainter,
    QPaintEvent,
    QTextBlockFormat,
    QTextCursor,
    QTextOption,
)
from PySide6.QtWidgets import QFrame, QTextEdit, QWidget

from app.render.theme import theme

MAX_PASTE_CHARS = 20_000
MAX_LINE_CHARS = 4_000


def is_long(text: str) -> bool:
    """Whether a text is better kept aside than put into a text edit."""
    return len(text) > MAX_PASTE_CHARS or len(max(text.split("\n"), key=len)) > MAX_LINE_CHARS


def grows_long(cursor: QTextCursor, text: str) -> bool:
    """Whether a paste at `cursor` is too long, together with the line that it becomes part of."""
    first, last = (
        cursor.document().findBlock(cursor.selectionStart()),
        cursor.document().findBlock(cursor.selectionEnd()),
    )
    before = cursor.selectionStart() - first.position()
    after = last.position() + last.length() - 1 - cursor.selectionEnd()
    lines = text.split("\n")
    joined = [len(lines[0]) + before, len(lines[-1]) + after]
    if len(lines) == 1:
        joined = [before + len(text) + after]
    return is_long(text) or max(joined) > MAX_LINE_CHARS


class ComposerEdit(QTextEdit):
    """Plain text only.

    Signals:
        send_wanted: Enter was pressed.
        long_pasted(text): a text too long for the field.
        focus_changed(has_focus)
    """

    send_wanted = Signal()
    long_pasted = Signal(object)  # object: a str must not go through Qt's own text here
    focus_changed = Signal(bool)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setProperty("kind", "bare")
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setAcceptRichText(False)
        self.setTabChangesFocus(True)
        self.setAccessibleName("Message")
        self.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAsNeeded)
        self.document().setDocumentMargin(0)
        self.set_text("")

    def set_text(self, text: str) -> None:
        """Replace the text; lines keep their fixed height."""
        self.setPlainText(text)
        cursor = self.textCursor()
        cursor.select(QTextCursor.SelectionType.Document)
        line = QTextBlockFormat()
        fixed = QTextBlockFormat.LineHeightTypes.FixedHeight
        line.setLineHeight(theme().line("base"), int(fixed.value))
        cursor.mergeBlockFormat(line)
        cursor.clearSelection()
        cursor.movePosition(QTextCursor.MoveOperation.End)
        self.setTextCursor(cursor)
        self.document().clearUndoRedoStacks()

    def wanted_height(self) -> int:
        return max(theme().line("base"), int(self.document().size().height() + 0.5))

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if self.document().isEmpty():
            # Qt's own placeholder does not know the fixed line height and stands too high.
            painter = QPainter(self.viewport())
            painter.setFont(theme().font("base", "regular"))
            painter.setPen(theme().color("text.placeholder"))
            box = self.cursorRect().adjusted(1, 0, self.viewport().width(), 0)
            flags = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
            painter.drawText(box, int(flags), "Message")

    def keyPressEvent(self, event: QKeyEvent) -> None:
        is_enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if is_enter and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.send_wanted.emit()
        elif is_enter:
            self.textCursor().insertBlock()  # Qt's own Shift+Enter inserts U+2028
            self.ensureCursorVisible()
        elif event.key() == Qt.Key.Key_Escape:
            event.ignore()  # the window stops the answer
        else:
            super().keyPressEvent(event)

    def insertFromMimeData(self, source: QMimeData) -> None:
        text = source.text()
        if grows_long(self.textCursor(), text):
            self.long_pasted.emit(text)
        elif text:
            self.insertPlainText(text)
            self.ensureCursorVisible()

    def canInsertFromMimeData(self, source: QMimeData) -> bool:
        return source.hasText()

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.focus_changed.emit(True)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.focus_changed.emit(False)
