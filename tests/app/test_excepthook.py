"""Stray exceptions reach the log and the user, from whatever thread."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from pathlib import Path

import pytest
from PySide6.QtCore import qWarning

from app.excepthook import ErrorReporter
from app.tasks import Tasks
from engine.errors import BadFileError


@pytest.fixture
def reporter(tmp_path, qapp):
    reporter = ErrorReporter(tmp_path)
    reporter.install()
    yield reporter
    reporter.uninstall()


@pytest.fixture
def sentences(reporter):
    heard = []
    reporter.happened.connect(heard.append)
    return heard


def log_of(reporter) -> str:
    return Path(reporter.log_path).read_text(encoding="utf-8")


def test_an_exception_in_the_main_thread(reporter, sentences):
    try:
        raise ValueError("odd")
    except ValueError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    assert "ValueError: odd" in sentences[0]
    assert "Traceback" not in sentences[0]
    assert "Traceback" in log_of(reporter)


def test_an_exception_in_a_thread(reporter, sentences, qtbot):
    def fail():
        raise KeyError("worker")

    threading_hook = threading.excepthook
    thread = threading.Thread(target=lambda: _caught(fail, threading_hook), name="io-test")
    thread.start()
    thread.join()
    qtbot.waitUntil(lambda: len(sentences) == 1)
    assert "KeyError" in sentences[0]
    assert "io-test" in log_of(reporter)


def _caught(function, hook):
    """Run as the threading module would, without pytest's own hook in the way."""
    try:
        function()
    except Exception as error:
        hook(threading.ExceptHookArgs((type(error), error, error.__traceback__, None)))


def test_our_own_errors_are_shown_as_they_are(reporter, sentences):
    reporter.report(BadFileError("x.gguf is cut short; fetch it again."))
    assert sentences == ["x.gguf is cut short; fetch it again."]


def test_warnings_of_qt_go_to_the_log(reporter, sentences):
    qWarning("a layout is odd")
    assert "a layout is odd" in log_of(reporter)
    assert sentences == []


def test_a_coroutine_started_from_a_slot_is_never_silent(reporter, sentences, run):
    tasks = Tasks(reporter.report)

    async def fails():
        raise RuntimeError("in a coroutine")

    async def story():
        tasks.start(fails())
        task = tasks.start(asyncio.sleep(10))
        await tasks.settle(timeout_s=0.05)
        assert task.cancelling()

    run(story())
    assert "in a coroutine" in sentences[0]
    assert tasks.num_running == 0


def test_a_log_that_cannot_be_written_does_not_stop_the_window(tmp_path, qapp, capsys):
    (tmp_path / "logs").write_text("a file where the folder should be")
    reporter = ErrorReporter(tmp_path)
    reporter.install()
    logging.getLogger("tessera").warning("to stderr then")
    reporter.uninstall()
    assert "to stderr then" in capsys.readouterr().err
