"""The set-up, in one command: `python3 packaging/bootstrap.py run` (or `test`, or `setup`).

This file only checks the Python version and hands over. It must parse on Python 3.6 and later, or
an old one would answer with a syntax error instead of a sentence: no newer syntax here.
"""

import sys

NEEDED = (3, 11)


def main() -> int:
    """Hand over to the set-up steps; returns the exit code."""
    if sys.version_info[:2] < NEEDED:
        has = f"{sys.version_info[0]}.{sys.version_info[1]}"
        sys.stderr.write(
            f"Tessera needs Python 3.11 or newer and this is Python {has}: install a newer one "
            "(on Debian or Ubuntu: apt-get install python3.11 python3.11-venv) and start this "
            "file with it.\n"
        )
        return 1
    import setup_steps  # behind the gate: its syntax is newer

    return setup_steps.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
