"""`python -m app` and the command `tessera`: reads the command line, then opens the window.

No Qt at module level: `--help`, `--version` and refusals need none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from app.options import parse


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.demo:
        from app.demo import run_demo

        return run_demo(options)
    from app.main import run

    return run(options)


if __name__ == "__main__":
    sys.exit(main())
