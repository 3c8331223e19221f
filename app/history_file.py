"""HistoryFile: the SQLite file that holds every chat. Used by one thread only; no Qt.

A reply grows as rows of `chunks` while it streams, so that an append never rewrites what is
there; when it ends, its chunks become the one text of its row.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from app.errors import HistoryError
from app.records import ReplyRecord, Sampling, SessionRecord, TurnRecord

MIGRATIONS = (
    """
    CREATE TABLE sessions (
        session_id TEXT PRIMARY KEY, title TEXT NOT NULL, created_ms INTEGER NOT NULL,
        updated_ms INTEGER NOT NULL, system_prompt TEXT NOT NULL, sampling TEXT NOT NULL,
        deleted INTEGER NOT NULL DEFAULT 0);
    CREATE TABLE turns (
        turn_id TEXT PRIMARY KEY,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        position INTEGER NOT NULL, user_text TEXT NOT NULL, created_ms INTEGER NOT NULL,
        chosen INTEGER NOT NULL);
    CREATE INDEX turns_of_session ON turns (session_id, position);
    CREATE TABLE replies (
        reply_id TEXT PRIMARY KEY,
        turn_id TEXT NOT NULL REFERENCES turns ON DELETE CASCADE,
        position INTEGER NOT NULL, text TEXT NOT NULL, state TEXT NOT NULL,
        finish_reason TEXT NOT NULL, error TEXT NOT NULL, model TEXT NOT NULL,
        created_ms INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,
        cached_tokens INTEGER NOT NULL, new_tokens INTEGER NOT NULL, ttft_ms REAL NOT NULL,
        tokens_per_s REAL NOT NULL, num_blocks INTEGER NOT NULL, kv_bytes INTEGER NOT NULL,
        seed INTEGER);
    CREATE INDEX replies_of_turn ON replies (turn_id, position);
    CREATE TABLE chunks (
        reply_id TEXT NOT NULL REFERENCES replies ON DELETE CASCADE,
        start INTEGER NOT NULL, text TEXT NOT NULL,
        PRIMARY KEY (reply_id, start)) WITHOUT ROWID;
    CREATE TABLE tabs (
        position INTEGER PRIMARY KEY, session_id TEXT NOT NULL, is_current INTEGER NOT NULL);
    """,
)
REPLY_FIELDS = tuple(field.name for field in fields(ReplyRecord))


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a history holds when it is opened."""

    sessions: tuple[SessionRecord, ...] = ()  # newest first
    tabs: tuple[str, ...] = ()  # session ids in tab order
    current: str = ""
    note: str = ""  # a sentence for the user when something was wrong with the file


LOCK_S = 1.0  # for another program to let go of the file; quitting must not wait longer
# What keeps a file from being used without its being damaged.
IN_THE_WAY = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOMEM,
}


class NewerFileError(Exception):
    """The file's version is above ours."""


class HistoryFile:
    """One connection. Every method is one transaction.

    Raises:
        HistoryError: from every method; the disk is full, the file locked or damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None

    # --- opening and closing --------------------------------------------------------------------

    def open(self) -> Loaded:
        """Open or create the file, mark what a crash left unfinished, read everything.

        A damaged file is moved aside, never deleted. A file that cannot be used at all (newer
        version, no right to write) stays as it is, and chats live in memory for this run.
        """
        note = ""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Others on this machine do not read along; SQLite gives its own files the same rights.
            self._path.touch(mode=0o600, exist_ok=True)
            return self._read_all(str(self._path))
        except OSError as error:
            note = self._in_memory(f"cannot be opened ({error.strerror or error})")
        except NewerFileError:
            note = self._in_memory("were written by a newer version of Tessera")
        except sqlite3.Error as error:
            is_in_the_way = getattr(error, "sqlite_errorcode", 0) & 0xFF in IN_THE_WAY
            if is_in_the_way:
                note = self._in_memory(f"cannot be opened ({_reason(error)})")
            else:
                note = self._start_anew(error)
        except (UnicodeError, ValueError, TypeError) as error:  # values that nothing of ours wrote
            note = self._start_anew(error)
        with self._reading() as db:
            return replace(_load(db), note=note)

    def _read_all(self, name: str) -> Loaded:
        db = self._connect(name)
        db.execute("BEGIN IMMEDIATE")
        _mark_unfinished(db)
        db.execute("DELETE FROM sessions WHERE deleted = 1")
        db.execute("COMMIT")
        return _load(db)

    def close(self) -> None:
        """Drop what was deleted for good and close the connection."""
        if self._db is None:
            return
        with self._writing() as db:
            db.execute("DELETE FROM sessions WHERE deleted = 1")
        self._db.close()
        self._db = None

    def _connect(self, name: str) -> sqlite3.Connection:
        self._db = db = sqlite3.connect(name, timeout=LOCK_S, isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
        if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
            raise sqlite3.DatabaseError("damaged")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version > len(MIGRATIONS):
            raise NewerFileError
        for number, script in enumerate(MIGRATIONS[version:], version + 1):
            db.executescript(f"BEGIN; {script}; PRAGMA user_version = {number}; COMMIT;")
        db.execute("SELECT count(*) FROM sessions, tabs, turns, replies, chunks").fetchone()
        return db

    def _start_anew(self, error: Exception) -> str:
        if self._db is not None:
            self._db.close()
        stamp = time.strftime("%Y%m%d-%H%M%S")
        aside = self._path.with_name(f"{self._path.stem}-damaged-{stamp}{self._path.suffix}")
        number = 1
        while aside.exists():
            number += 1
            aside = aside.with_name(f"{self._path.stem}-damaged-{stamp}-{number}.db")
        try:
            for suffix in ("", "-wal", "-shm"):
                part = self._path.with_name(self._path.name + suffix)
                if part.exists():
                    part.rename(aside.with_name(aside.name + suffix))
            self._connect(str(self._path))
        except (sqlite3.Error, OSError):
            return self._in_memory(f"are damaged ({error})")
        return (
            f"The file with your chats was damaged ({error}); it was kept as {aside.name} in "
            f"{aside.parent}, and a new one was started."
        )

    def _in_memory(self, what: str) -> str:
        if self._db is not None:
            self._db.close()
        self._connect(":memory:")
        return (
            f"Your chats in {self._path} {what}; they were left untouched, and what you write "
            "now is not kept after quitting: export it."
        )

    # --- writing --------------------------------------------------------------------------------

    def save_session(self, session: SessionRecord) -> None:
        """Write a whole chat in place of what the file holds of it."""
        with self._writing() as db:
            db.execute("DELETE FROM sessions WHERE session_id = ?", (session.session_id,))
            db.execute(
                "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, 0)",
                (
                    session.session_id,
                    session.title,
                    session.created_ms,
                    session.updated_ms,
                    session.system_prompt,
                    json.dumps(asdict(session.sampling)),
                ),
            )
            for position, turn in enumerate(session.turns):
                _insert_turn(db, session.session_id, position, turn)

    def update_session(self, session: SessionRecord) -> None:
        """Write title, settings and times; turns stay."""
        with self._writing() as db:
            changed = db.execute(
                "UPDATE sessions SET title = ?, updated_ms = ?, system_prompt = ?, sampling = ? "
                "WHERE session_id = ?",
                (
                    session.title,
                    session.updated_ms,
                    session.system_prompt,
                    json.dumps(asdict(session.sampling)),
                    session.session_id,
                ),
            ).rowcount
            if not changed:
                raise HistoryError("This chat is not on the disk yet.")

    def add_turn(self, session_id: str, position: int, turn: TurnRecord) -> None:
        with self._writing() as db:
            _insert_turn(db, session_id, position, turn)
            _touch(db, session_id, turn.created_ms)

    def put_reply(self, turn_id: str, position: int, reply: ReplyRecord, chosen: int) -> None:
        """Write a version of a reply with its whole text, and which version is chosen."""
        with self._writing() as db:
            _insert_reply(db, turn_id, position, reply)
            db.execute("UPDATE turns SET chosen = ? WHERE turn_id = ?", (chosen, turn_id))

    def append_text(self, reply_id: str, start: int, text: str) -> None:
        """Add what a reply that streams got from character `start` on."""
        with self._writing() as db:
            db.execute("INSERT OR REPLACE INTO chunks VALUES (?, ?, ?)", (reply_id, start, text))

    def choose(self, turn_id: str, version: int) -> None:
        with self._writing() as db:
            db.execute("UPDATE turns SET chosen = ? WHERE turn_id = ?", (version, turn_id))

    def set_deleted(self, session_id: str, deleted: bool) -> None:
        """Deleted chats stay in the file until the next start or `close`."""
        with self._writing() as db:
            db.execute(
                "UPDATE sessions SET deleted = ? WHERE session_id = ?", (int(deleted), session_id)
            )

    def remove(self, session_id: str) -> None:
        with self._writing() as db:
            db.execute("DELETE FROM sessions WHERE session_id = ?", (session_id,))

    def set_tabs(self, session_ids: tuple[str, ...], current: str) -> None:
        with self._writing() as db:
            db.execute("DELETE FROM tabs")
            rows = [(i, one, int(one == current)) for i, one in enumerate(session_ids)]
            db.executemany("INSERT INTO tabs VALUES (?, ?, ?)", rows)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if self._db is None:
            raise HistoryError("The file with your chats is closed.")
        try:
            yield self._db
        except (sqlite3.Error, UnicodeError) as error:
            raise HistoryError(_sentence(error, self._path)) from error
        except OverflowError as error:
            raise HistoryError(f"A number in this chat is too large to keep ({error}).") from error


def _reason(error: sqlite3.Error) -> str:
    return {
        sqlite3.SQLITE_BUSY: "another program holds the file",
        sqlite3.SQLITE_FULL: "the disk is full",
        sqlite3.SQLITE_IOERR: f"{error}; the disk may be full",
    }.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, str(error))


def _sentence(error: Exception, path: Path) -> str:
    if "full" in str(error):
        return (
            f"The disk is full, so this chat is not being saved; make room where {path.parent} "
            "lies, it is saved with the next message."
        )
    if "locked" in str(error):
        return f"Another program holds {path}, so this chat is not being saved; close that program."
    return f"This chat is not being saved: {path} says “{error}”; export it to keep it."


# --- rows and records -----------------------------------------------------------------------------


def _insert_turn(db: sqlite3.Connection, session_id: str, position: int, turn: TurnRecord) -> None:
    db.execute(
        "INSERT INTO turns VALUES (?, ?, ?, ?, ?, ?)",
        (turn.turn_id, session_id, position, turn.user_text, turn.created_ms, turn.chosen),
    )
    for number, reply in enumerate(turn.replies):
        _insert_reply(db, turn.turn_id, number, reply)


def _insert_reply(db: sqlite3.Connection, turn_id: str, position: int, reply: ReplyRecord) -> None:
    values = {name: getattr(reply, name) for name in REPLY_FIELDS}
    values |= {"turn_id": turn_id, "position": position}
    names = ", ".join(values)
    marks = ", ".join(f":{name}" for name in values)
    # The chunks go in the same transaction: the record holds their text.
    db.execute(f"INSERT OR REPLACE INTO replies ({names}) VALUES ({marks})", values)
    db.execute("DELETE FROM chunks WHERE reply_id = ?", (reply.reply_id,))


def _touch(db: sqlite3.Connection, session_id: str, updated_ms: int) -> None:
    db.execute("UPDATE sessions SET updated_ms = ? WHERE session_id = ?", (updated_ms, session_id))


def _mark_unfinished(db: sqlite3.Connection) -> None:
    """Replies that streamed when the application ended keep their text and say so."""
    rows = db.execute("SELECT reply_id, text FROM replies WHERE state = 'streaming'").fetchall()
    for reply_id, whole in rows:
        for start, text in db.execute(
            "SELECT start, text FROM chunks WHERE reply_id = ? ORDER BY start", (reply_id,)
        ):
            # By place, not just one after the other: a chat that was written whole in between
            # (see Journal) holds text that a later chunk repeats. Joined here, because SQL's
            # own text functions end at the first NUL character.
            whole = whole[:start] + text
        db.execute(
            "UPDATE replies SET text = ?, state = 'unfinished' WHERE reply_id = ?",
            (whole, reply_id),
        )
    db.execute("DELETE FROM chunks")


def _load(db: sqlite3.Connection) -> Loaded:
    replies: dict[str, list[ReplyRecord]] = {}
    columns = ", ".join(("turn_id", *REPLY_FIELDS))
    for turn_id, *values in db.execute(f"SELECT {columns} FROM replies ORDER BY position"):
        reply = ReplyRecord(**dict(zip(REPLY_FIELDS, values, strict=True)))
        replies.setdefault(turn_id, []).append(reply)
    turns: dict[str, list[TurnRecord]] = {}
    for session_id, turn_id, user_text, created_ms, chosen in db.execute(
        "SELECT session_id, turn_id, user_text, created_ms, chosen FROM turns ORDER BY position"
    ):
        versions = tuple(replies.get(turn_id, ()))
        chosen = min(max(chosen, 0), max(len(versions) - 1, 0))
        turn = TurnRecord(turn_id, user_text, created_ms, versions, chosen)
        turns.setdefault(session_id, []).append(turn)
    sessions = tuple(
        SessionRecord(one, title, made, changed, prompt, _sampling(text), tuple(turns.get(one, ())))
        for one, title, made, changed, prompt, text in db.execute(
            "SELECT session_id, title, created_ms, updated_ms, system_prompt, sampling "
            "FROM sessions WHERE deleted = 0 ORDER BY updated_ms DESC, created_ms DESC, rowid DESC"
        )
    )
    known = {session.session_id for session in sessions}
    rows = db.execute("SELECT session_id, is_current FROM tabs ORDER BY position").fetchall()
    tabs = tuple(one for one, _ in rows if one in known)
    current = next((one for one, is_current in rows if is_current and one in known), "")
    return Loaded(sessions, tabs, current)


def _sampling(text: str) -> Sampling:
    """Settings of a chat; a field that is missing or unknown keeps its default."""
    try:
        values: dict[str, Any] = json.loads(text)
        known = {field.name for field in fields(Sampling)}
        return Sampling(**{key: value for key, value in values.items() if key in known})
    except (ValueError, TypeError, AttributeError):
        return Sampling()
