"""What a failed pip run means for a person: one sentence from its exit code and output."""

from __future__ import annotations

import re

# (words of pip or the system, the sentence). The first match wins: with the network gone, pip
# also says that no version was found, so the cause comes before its consequence.
_CAUSES: tuple[tuple[str, str], ...] = (
    (
        r"no space left on device|errno 28|disk quota exceeded|not enough space on the disk",
        "The disk is full: make room and run the same command again",
    ),
    (
        r"read-only file system|errno 30|permission denied|errno 13|access is denied",
        "A folder cannot be written to: give yourself write permission, or use another folder",
    ),
    (
        r"certificate verify failed|sslerror",
        "The package index could not be trusted (its certificate was refused): check the clock "
        "and the certificates of this machine, then run the same command again",
    ),
    (
        r"name resolution|getaddrinfo|failed to establish a new connection|connection refused"
        r"|newconnectionerror|network is unreachable|connection broken|timed out|proxyerror"
        r"|remotedisconnected|connection reset|incompleteread|connection aborted",
        "The package index cannot be reached: check the network connection and run the same "
        "command again, which goes on from here",
    ),
    (
        r"no module named pip",
        "This Python has no pip: delete the folder .venv and run "
        "`python3 packaging/bootstrap.py setup`",
    ),
    (
        r"do not match the hashes|hash mismatch",
        "A package arrived damaged: run the same command again",
    ),
)


def explain(output: str, exit_code: int) -> str:
    """One sentence, with the way out, for a pip run that ended with `exit_code` after `output`."""
    if exit_code in (-9, 137):
        return "Installing was killed, most likely for lack of memory: close programs and try again"
    for pattern, sentence in _CAUSES:
        if re.search(pattern, output, re.IGNORECASE):
            return sentence
    missing = re.search(r"No matching distribution found for (\S+)", output)
    if missing and "from versions: none" in output:  # no version at all: not even a wrong one
        return (
            f"The package index showed no {missing[1]} for this machine: check the network "
            "connection, and use a 64-bit Python 3.11 to 3.14"
        )
    if missing:
        return (
            f"The package index has no {missing[1]} for this Python and this machine: "
            "use a 64-bit Python 3.11 to 3.14"
        )
    if "ResolutionImpossible" in output or "conflicting dependencies" in output:
        return (
            "The pinned packages do not fit together on this machine: "
            "use a 64-bit Python 3.11 to 3.14, or delete the folder .venv and try again"
        )
    errors = [line for line in output.splitlines() if line.lower().startswith("error:")]
    last = errors[-1][len("error:") :].strip() if errors else f"exit code {exit_code}"
    return f"pip failed ({last[:200]}): delete the folder .venv and run the same command again"
