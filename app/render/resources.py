"""The data files of the window: tokens and icons as they lie in `resources/`. No painting."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

RESOURCES = Path(__file__).resolve().parents[2] / "resources"


@cache
def tokens() -> dict[str, Any]:
    """The content of `tokens.json`."""
    with open(RESOURCES / "tokens.json", encoding="utf-8") as file:
        return json.load(file)


@cache
def icon_svg(name: str, colour: str, stroke: float) -> str:
    """SVG text of a bundled icon in one colour ("#rrggbb") and stroke width (24 px grid).

    Raises:
        FileNotFoundError: no such icon is bundled.
    """
    text = (RESOURCES / "icons" / f"{name}.svg").read_text(encoding="utf-8")
    text = text.replace("currentColor", colour)
    return re.sub(r'stroke-width="[\d.]+"', f'stroke-width="{stroke:g}"', text)
