"""SessionListModel: the chats as rows of a list, grouped by day and filtered by title."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from enum import IntEnum
from typing import Literal

from PySide6.QtCore import (
    QAbstractListModel,
    QModelIndex,
    QObject,
    QPersistentModelIndex,
    Qt,
    Signal,
    Slot,
)

from app.state.session import Session, Sessions

ChipState = Literal["none", "cached", "active", "shared"]
Index = QModelIndex | QPersistentModelIndex
BLOCK_TOKENS = 16  # slots of a block, unless a model says otherwise


@dataclass(frozen=True, slots=True)
class Chip:
    """The tile before a chat's title. `fill` is the filled part of the block being written."""

    owner: int | None
    state: ChipState
    fill: float = 1.0

    def resting(self) -> Chip:
        """As it stands beside a reply that is not being written."""
        if self.owner is None:
            return Chip(None, "none")
        return replace(self, fill=1.0)


def chip_of(session: Session, block_tokens: int = BLOCK_TOKENS) -> Chip:
    """What the chip of a chat shows now."""
    if session.owner is None:
        return Chip(None, "none")
    if session.status in ("running", "reading"):
        return Chip(session.owner, "active", min(1.0, session.fill / max(1, block_tokens)))
    if session.has_cached_blocks or session.is_busy:
        return Chip(session.owner, "cached")
    return Chip(None, "none")


class Role(IntEnum):
    """Roles beyond Qt's own; the title is Qt.DisplayRole."""

    KIND = Qt.ItemDataRole.UserRole + 1  # "group" or "chat"
    SESSION_ID = Qt.ItemDataRole.UserRole + 2
    CHIP = Qt.ItemDataRole.UserRole + 3  # Chip
    UNREAD = Qt.ItemDataRole.UserRole + 4
    STATUS = Qt.ItemDataRole.UserRole + 5  # app.state.session.Status
    STATUS_TEXT = Qt.ItemDataRole.UserRole + 6
    CURRENT = Qt.ItemDataRole.UserRole + 7
    PINNED = Qt.ItemDataRole.UserRole + 8


def group_name(updated_ms: int, today: date) -> str:
    """Heading of the group that a chat belongs to."""
    day = datetime.fromtimestamp(updated_ms / 1000).date()
    if day >= today:
        return "Today"
    if day == today - timedelta(days=1):
        return "Yesterday"
    return "Last week" if day > today - timedelta(days=8) else "Older"


def _facts(session: Session) -> tuple[int, str]:
    """What a chat's place in the list depends on."""
    return session.record.updated_ms, session.title


GROUPS = ("Today", "Yesterday", "Last week", "Older")


class SessionListModel(QAbstractListModel):
    """Rows are group headings and chats, newest first.

    Signals:
        rebuilt: rows were added, taken away or moved; views select the current chat again.
    """

    rebuilt = Signal()

    def __init__(
        self,
        sessions: Sessions,
        parent: QObject | None = None,
        today: Callable[[], date] = date.today,
    ) -> None:
        super().__init__(parent)
        self._sessions = sessions
        self._today = today
        self._filter = ""
        self._rows: list[str | Session] = []
        self._facts: dict[Session, tuple[int, str]] = {}
        sessions.inserted.connect(self._on_inserted)
        sessions.removed.connect(self._on_removed)
        sessions.current_changed.connect(self._on_current)
        self._known: set[Session] = set()
        self._listen()
        self._rebuild()

    # --- asking -----------------------------------------------------------------------------

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(self._rows)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> object:
        if not index.isValid() or index.row() >= len(self._rows):
            return None
        row = self._rows[index.row()]
        if isinstance(row, str):
            return self._group_data(row, role)
        return self._chat_data(row, role)

    def _group_data(self, name: str, role: int) -> object:
        if role == Qt.ItemDataRole.DisplayRole:
            return name
        return "group" if role == Role.KIND else None

    def _chat_data(self, session: Session, role: int) -> object:
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.EditRole):
            return session.title
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return self._spoken(session)
        if role == Qt.ItemDataRole.ToolTipRole:
            return self._tip(session)
        answers: dict[int, object] = {
            Role.KIND: "chat",
            Role.SESSION_ID: session.session_id,
            Role.UNREAD: session.unread,
            Role.STATUS: session.status,
            Role.STATUS_TEXT: session.status_text,
            Role.CURRENT: session.session_id == self._sessions.current_id,
            Role.PINNED: session.is_pinned,
        }
        return chip_of(session) if role == Role.CHIP else answers.get(role)

    def _tip(self, session: Session) -> str:
        """The whole title, and below it what the row has no room for."""
        lines = [session.title]
        if sentence := session.status_sentence():
            lines.append(sentence)
        if session.is_pinned:
            lines.append("Kept in memory")
        return "\n".join(lines)

    def _spoken(self, session: Session) -> str:
        words = [session.title]
        if session.status != "idle":
            words.append(session.status_sentence() or session.status)
        if session.unread:
            words.append("unread")
        if session.is_pinned:
            words.append("kept in memory")
        return ", ".join(words)

    def flags(self, index: Index) -> Qt.ItemFlag:
        if not index.isValid() or isinstance(self._rows[index.row()], str):
            return Qt.ItemFlag.NoItemFlags
        flag = Qt.ItemFlag
        return flag.ItemIsEnabled | flag.ItemIsSelectable | flag.ItemIsEditable

    def session_at(self, row: int) -> Session | None:
        found = self._rows[row] if 0 <= row < len(self._rows) else None
        return found if isinstance(found, Session) else None

    def row_of(self, session_id: str) -> int:
        """Row of a chat, -1 when it is not shown."""
        for number, row in enumerate(self._rows):
            if isinstance(row, Session) and row.session_id == session_id:
                return number
        return -1

    @property
    def num_chats(self) -> int:
        return sum(isinstance(row, Session) for row in self._rows)

    @property
    def filter_text(self) -> str:
        return self._filter

    # --- changing -----------------------------------------------------------------------------

    def set_filter(self, text: str) -> None:
        """Show only chats whose title holds `text`, case ignored."""
        self._filter = text.strip().casefold()
        self._rebuild()

    @Slot(int)
    def _on_inserted(self, _index: int) -> None:
        self._listen()
        self._rebuild()

    @Slot(int)
    def _on_removed(self, _index: int) -> None:
        self._listen()
        self._rebuild()

    def _listen(self) -> None:
        """Listen to the chats that are there, and to no others: Undo brings the same one back."""
        present = set(self._sessions.all)
        for session in present - self._known:
            session.changed.connect(self._on_changed)
        for session in self._known - present:
            session.changed.disconnect(self._on_changed)
        self._known = present

    @Slot()
    def _on_changed(self) -> None:
        session = self.sender()
        if not isinstance(session, Session):
            return
        if self._facts.get(session) == _facts(session):
            self._tell(session.session_id)  # a chip that fills: many times a second
        else:
            self._rearrange()

    @Slot(str)
    def _on_current(self, session_id: str) -> None:
        if self._rows:
            self.dataChanged.emit(self.index(0), self.index(len(self._rows) - 1))

    def _tell(self, session_id: str) -> None:
        row = self.row_of(session_id)
        if row >= 0:
            self.dataChanged.emit(self.index(row), self.index(row))

    @Slot()
    def _rebuild(self) -> None:
        self.beginResetModel()
        self._rows = self._wanted_rows()
        self._facts = {session: _facts(session) for session in self._sessions.all}
        self.endResetModel()
        self.rebuilt.emit()

    def _rearrange(self) -> None:
        """As `_rebuild`, row by row: a reset would close the field in which a chat is renamed."""
        wanted = self._wanted_rows()
        self._facts = {session: _facts(session) for session in self._sessions.all}
        none, kept = QModelIndex(), set(wanted)
        for row in reversed(range(len(self._rows))):
            if self._rows[row] not in kept:
                self.beginRemoveRows(none, row, row)
                del self._rows[row]
                self.endRemoveRows()
        for row, one in enumerate(wanted):
            if row < len(self._rows) and self._rows[row] == one:
                continue
            if one in self._rows:
                at = self._rows.index(one)
                self.beginMoveRows(none, at, at, none, row)
                self._rows.insert(row, self._rows.pop(at))
                self.endMoveRows()
            else:
                self.beginInsertRows(none, row, row)
                self._rows.insert(row, one)
                self.endInsertRows()
        if self._rows:
            self.dataChanged.emit(self.index(0), self.index(len(self._rows) - 1))
        self.rebuilt.emit()

    def _wanted_rows(self) -> list[str | Session]:
        today = self._today()
        groups: dict[str, list[Session]] = {name: [] for name in GROUPS}
        for session in self._sessions.all:
            if self._filter in session.title.casefold():
                groups[group_name(session.record.updated_ms, today)].append(session)
        rows: list[str | Session] = []
        for name, members in groups.items():
            if members:
                rows += [name, *members]
        return rows
