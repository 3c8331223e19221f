"""Tokens per second over all chats."""

from __future__ import annotations

import time

import pytest

from app.bridge import EngineBridge
from app.meter import LoadMeter
from app.state.status import AppStatus
from engine.messages import StepEvents, StepStats


def test_rate_of_the_last_seconds_and_zero_when_idle(qtbot, monkeypatch):
    monkeypatch.setattr("app.meter.WINDOW_S", 0.4)
    status = AppStatus()
    bridge = EngineBridge(lambda: None)  # type: ignore[arg-type, return-value]
    meter = LoadMeter(bridge, status)
    now_s = time.monotonic()
    for number in range(10):  # 10 steps of 10 ms, 4 tokens each
        end_s = now_s - 0.09 + number * 0.01
        bridge.post(StepEvents((), StepStats(0, 4, 10.0, 4, 0, 0.0, end_s)))
    qtbot.waitUntil(lambda: status.tokens_per_s > 0)
    assert status.tokens_per_s == pytest.approx(400, rel=0.01)
    qtbot.waitUntil(lambda: status.tokens_per_s == 0)
    qtbot.waitUntil(lambda: not meter._timer.isActive())
