"""History on disk: round trips, crashes, damaged files, full disks, deleted chats."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import HistoryError
from app.history import History
from app.history_file import HistoryFile
from app.records import ReplyRecord, Sampling, SessionRecord, TurnRecord

ROOT = Path(__file__).resolve().parents[2]


def chat(number: int = 1, *, replies: tuple[ReplyRecord, ...] = ()) -> SessionRecord:
    turn = TurnRecord(f"t{number}", "Why?\0 ü 日本 😀", 5, replies, max(len(replies) - 1, 0))
    return SessionRecord(
        f"s{number}",
        f"Chat {number}",
        number,
        number,
        "Be brief",
        Sampling(seed=2**63 - 1),
        (turn,),
    )


def reply(number: int, state="complete", text="Because.\0\ufeff") -> ReplyRecord:
    return ReplyRecord(
        f"r{number}", text, state, "stop", "", "M", 6, 1, 2, 3, 4.5, 6.5, 7, 2**40, 2**63 - 1
    )


def opened(path: Path) -> HistoryFile:
    file = HistoryFile(path / "history.db")
    assert file.open().note == ""
    return file


def test_what_was_written_is_read_back(tmp_path):
    file = opened(tmp_path)
    sessions = [chat(1, replies=(reply(1), reply(2))), chat(2)]
    for one in sessions:
        file.save_session(one)
    file.set_tabs(("s2", "s1"), "s1")
    file.close()
    loaded = HistoryFile(tmp_path / "history.db").open()
    assert list(loaded.sessions) == sessions[::-1]
    assert (loaded.tabs, loaded.current) == (("s2", "s1"), "s1")


def test_a_streaming_reply_is_unfinished_at_the_next_start(tmp_path):
    file = opened(tmp_path)
    file.save_session(chat(1, replies=(reply(1, "streaming", ""),)))
    for start, text in [(0, "One "), (4, "two\0"), (8, " three")]:
        file.append_text("r1", start, text)
    again = HistoryFile(tmp_path / "history.db")  # the first one never closed: as after a kill
    found = again.open().sessions[0].turns[0].reply
    assert found is not None
    assert (found.state, found.text) == ("unfinished", "One two\0 three")


def test_a_chunk_that_repeats_text_of_the_row_is_not_doubled(tmp_path):
    file = opened(tmp_path)
    file.save_session(chat(1, replies=(reply(1, "streaming", "One two"),)))
    file.append_text("r1", 4, "two three")
    found = HistoryFile(tmp_path / "history.db").open().sessions[0].turns[0].reply
    assert found is not None
    assert found.text == "One two three"


def test_the_end_of_a_reply_replaces_its_chunks(tmp_path):
    file = opened(tmp_path)
    file.save_session(chat(1, replies=(reply(1, "streaming", ""),)))
    file.append_text("r1", 0, "Beca")
    file.put_reply("t1", 0, reply(1), 0)
    loaded = HistoryFile(tmp_path / "history.db").open()
    assert loaded.sessions[0].turns[0].replies == (reply(1),)
    with sqlite3.connect(tmp_path / "history.db") as db:
        assert db.execute("SELECT count(*) FROM chunks").fetchone() == (0,)


WRITER = """
import sys
from pathlib import Path
from app.history import History
from app.history_file import HistoryFile
from app.records import ReplyRecord, SessionRecord, TurnRecord
file = HistoryFile(Path(sys.argv[1]))
file.open()
reply = ReplyRecord("r", "", "streaming")
file.save_session(SessionRecord("s", "Killed", 1, 1))
file.add_turn("s", 0, TurnRecord("t", "question", 1, (reply,)))
start = 0
for number in range(10**9):
    text = f"{number} "
    file.append_text("r", start, text)
    start += len(text)
    print(number, flush=True)
"""


def test_kill_9_loses_no_append_that_returned(tmp_path):
    path = tmp_path / "history.db"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = [int(next(process.stdout)) for _ in range(150)]
    os.kill(process.pid, signal.SIGKILL)
    said += [int(line) for line in process.stdout.read().split("\n") if line.strip()]
    assert process.wait() == -signal.SIGKILL
    turn = HistoryFile(path).open().sessions[0].turns[0]
    assert turn.user_text == "question"
    assert turn.reply is not None
    assert turn.reply.state == "unfinished"
    written = [int(word) for word in turn.reply.text.split()]
    assert written == list(range(len(written)))
    assert len(written) >= len(said)


@pytest.mark.parametrize("damage", ["html", "cut", "zeros"])
def test_a_damaged_file_is_moved_aside_and_kept(tmp_path, damage):
    path = tmp_path / "history.db"
    file = opened(tmp_path)
    for number in range(200):
        file.save_session(chat(number, replies=(reply(number, text="x" * 2000),)))
    file.close()
    content = path.read_bytes()
    bad = {
        "html": b"<!DOCTYPE html><html>" * 500,
        "cut": content[: len(content) // 2 + 7],
        "zeros": content[:4096] + b"\0" * 40960 + content[45056:],
    }[damage]
    path.write_bytes(bad)
    again = HistoryFile(path)
    loaded = again.open()
    assert loaded.sessions == ()
    assert "damaged" in loaded.note
    kept = list(tmp_path.glob("history-damaged-*.db"))
    assert [one.read_bytes() for one in kept] == [bad]
    again.save_session(chat(1))
    again.close()
    assert len(HistoryFile(path).open().sessions) == 1


@pytest.mark.parametrize(
    "script",
    [
        "UPDATE turns SET user_text = CAST(x'ff00fe' AS TEXT)",
        "UPDATE sessions SET sampling = 'no JSON'",
        "UPDATE replies SET text = CAST(x'c328' AS TEXT), state = 'streaming'",
        "DROP TABLE chunks",
        "ALTER TABLE replies RENAME COLUMN text TO words",
    ],
)
def test_a_file_with_values_that_nobody_wrote_is_moved_aside(tmp_path, script):
    """SQLite's own check passes these."""
    path = tmp_path / "history.db"
    file = opened(tmp_path)
    file.save_session(chat(1, replies=(reply(1),)))
    file.close()
    with sqlite3.connect(path) as db:
        db.executescript(script)
    db.close()
    again = HistoryFile(path)
    loaded = again.open()
    if loaded.sessions:  # what can be read is read
        assert loaded.note == ""
        return
    assert "damaged" in loaded.note
    assert len(list(tmp_path.glob("history-damaged-*.db"))) == 1
    again.save_session(chat(2))


def test_a_file_that_another_program_holds_leaves_chats_in_memory(tmp_path):
    path = tmp_path / "history.db"
    opened(tmp_path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        file = HistoryFile(path)
        loaded = file.open()
        assert "another program holds the file" in loaded.note
        file.save_session(chat(1))
        file.close()
    assert HistoryFile(path).open().note == ""


def test_the_end_does_not_wait_for_a_file_that_is_held(tmp_path, run):
    path = tmp_path / "history.db"

    async def story():
        history = History(path)
        await history.open()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            writes = [history.save_session(chat(number)) for number in range(5)]
            start_s = time.monotonic()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(history.close(), 0.2)
            assert time.monotonic() - start_s < 0.8
        await asyncio.gather(*writes, return_exceptions=True)

    run(story())


def test_others_on_the_machine_cannot_read_along(tmp_path):
    opened(tmp_path)
    assert (tmp_path / "history.db").stat().st_mode & 0o077 == 0


def test_a_newer_file_is_left_untouched(tmp_path):
    path = tmp_path / "history.db"
    file = opened(tmp_path)
    file.save_session(chat(1))
    file.close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    before = path.read_bytes()
    other = HistoryFile(path)
    loaded = other.open()
    assert "newer version" in loaded.note
    other.save_session(chat(2))  # lives in memory
    other.close()
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_made_leaves_chats_in_memory(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    file = HistoryFile(tmp_path / "file" / "history.db")
    assert "not kept" in file.open().note
    file.save_session(chat(1))


def test_a_full_disk_is_a_sentence_and_what_was_there_stays(tmp_path):
    file = opened(tmp_path)
    file.save_session(chat(1))
    assert file._db is not None
    pages = file._db.execute("PRAGMA page_count").fetchone()[0]
    file._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(HistoryError, match="disk is full"):
        file.save_session(chat(2, replies=(reply(2, text="x" * 100_000),)))
    file._db.execute("PRAGMA max_page_count = 100000")
    file.save_session(chat(3))
    assert {one.session_id for one in HistoryFile(tmp_path / "history.db").open().sessions} == {
        "s1",
        "s3",
    }


def test_deleted_chats_come_back_until_the_end(tmp_path):
    file = opened(tmp_path)
    file.save_session(chat(1))
    file.save_session(chat(2))
    file.set_deleted("s1", True)
    file.set_deleted("s2", True)
    file.set_deleted("s2", False)
    file.close()
    assert [one.session_id for one in HistoryFile(tmp_path / "history.db").open().sessions] == [
        "s2"
    ]


def test_tabs_of_chats_that_are_gone_are_forgotten(tmp_path):
    file = opened(tmp_path)
    file.save_session(chat(1))
    file.set_tabs(("gone", "s1"), "gone")
    loaded = HistoryFile(tmp_path / "history.db").open()
    assert (loaded.tabs, loaded.current) == (("s1",), "")


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@settings(max_examples=25, deadline=None)
@given(texts=st.lists(names, min_size=1, max_size=6), title=names)
def test_any_text_survives(tmp_path_factory, texts, title):
    folder = tmp_path_factory.mktemp("any")
    file = opened(folder)
    turns = tuple(
        TurnRecord(f"t{i}", text, i, (replace(reply(i), text=text[::-1]),))
        for i, text in enumerate(texts)
    )
    session = SessionRecord("s", title, 1, 1, title, Sampling(), turns)
    file.save_session(session)
    assert HistoryFile(folder / "history.db").open().sessions == (session,)
