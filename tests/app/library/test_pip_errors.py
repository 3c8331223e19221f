"""What pip says when it fails, and what we say."""

from __future__ import annotations

import pytest

from app.library.pip_errors import explain

NO_NETWORK = """\
WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(
 '<HTTPSConnection object>: Failed to establish a new connection: [Errno 111] Connection refused')'
ERROR: Could not find a version that satisfies the requirement torch==2.13.0 (from versions: none)
ERROR: No matching distribution found for torch==2.13.0
"""


@pytest.mark.parametrize(
    ("output", "code", "words"),
    [
        (NO_NETWORK, 1, "network"),
        ("Temporary failure in name resolution\nERROR: No matching distribution found", 1, "netw"),
        ("ReadTimeoutError: Read timed out.", 2, "network"),
        ("ERROR: Could not install: [Errno 28] No space left on device: '/x/y'", 1, "disk is full"),
        ("OSError: [Errno 122] Disk quota exceeded", 1, "disk is full"),
        ("ERROR: [Errno 13] Permission denied: '/x'", 1, "write permission"),
        ("SSLError(SSLCertVerificationError(1, 'certificate verify failed'))", 1, "certificate"),
        ("ERROR: No matching distribution found for torch==2.13.0", 1, "has no torch==2.13.0"),
        (
            "ERROR: Could not find x (from versions: none)\n"
            "ERROR: No matching distribution found for x==1",
            1,
            "showed no x==1",
        ),
        ("ERROR: ResolutionImpossible: see the guide", 1, "do not fit together"),
        ("/x/python: No module named pip", 1, "has no pip"),
        ("", -9, "memory"),
        ("ERROR: something odd", 1, "something odd"),
        ("", 7, "exit code 7"),
    ],
)
def test_each_failure_is_one_sentence_with_a_way_out(output: str, code: int, words: str) -> None:
    sentence = explain(output, code)
    assert words in sentence
    assert "\n" not in sentence
    assert not sentence.endswith(".")  # callers build it into theirs


def test_no_network_is_not_taken_for_a_missing_package() -> None:
    assert "has no" not in explain(NO_NETWORK, 1)


def test_a_dropped_pin_is_not_taken_for_the_network() -> None:
    assert "network" not in explain("ERROR: No matching distribution found for x==1", 1)
