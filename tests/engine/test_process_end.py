"""A process that ends while its engine writes, closed or not, ends as it was told to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import sys
from queue import SimpleQueue
from engine.config import EngineConfig
from engine.headless import Headless
from engine.messages import SamplingParams, Submit, TextDelta
from engine.places import starter_path
from pathlib import Path

events = SimpleQueue()
engine = Headless(EngineConfig(num_threads=4), starter_path(Path(sys.argv[1])))
engine.listen(events.put)
params = SamplingParams(max_tokens=3000, ignore_eos=True)
for number in range(1, 5):
    engine.client.send(Submit(number, params, prompt="word " * 300 * number, owner=number))
seen = 0
while seen < int(sys.argv[2]):
    seen += sum(isinstance(event, TextDelta) for event in events.get().events)
sys.exit(3)
"""


@pytest.mark.parametrize("num_tokens", [0, 1, 3, 40])
def test_an_engine_that_nobody_closed(data_folder: Path, num_tokens: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(data_folder), str(num_tokens)],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (3, "")
