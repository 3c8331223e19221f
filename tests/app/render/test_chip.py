"""The chip shows owner, state and fill in twelve pixels; icons follow the theme."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, QRect
from PySide6.QtGui import QImage, QPainter

from app.render.chip import paint_chip, paint_state, pattern_of
from app.render.figures import block_size_text, memory_text
from app.render.icons import icon, pixmap
from app.render.theme import theme

pytestmark = pytest.mark.usefixtures("qapp")


def chip_image(owner, state, fill=1.0, ratio=1.0) -> QImage:
    image = QImage(round(12 * ratio), round(12 * ratio), QImage.Format.Format_ARGB32)
    image.setDevicePixelRatio(ratio)
    image.fill(0)
    painter = QPainter(image)
    paint_chip(painter, QPoint(0, 0), owner, state, fill)
    painter.end()
    return image


@pytest.mark.parametrize("ratio", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("owner", [0, 7, 23])
def test_full_chip_has_the_owner_colour(owner: int, ratio: float) -> None:
    image = chip_image(owner, "active", 1.0, ratio)
    middle = image.width() // 2
    assert image.pixelColor(middle, middle) == theme().owner(owner, "active")


def test_fill_rises_from_the_bottom() -> None:
    image = chip_image(1, "active", 0.5)
    assert image.pixelColor(6, 3) == theme().owner(1, "cached")
    assert image.pixelColor(6, 8) == theme().owner(1, "active")


def test_cached_chip_is_pale_inside_an_active_border() -> None:
    image = chip_image(2, "cached")
    assert image.pixelColor(6, 6) == theme().owner(2, "cached")
    assert image.pixelColor(0, 6).alpha() > 0


def test_shared_chip_lacks_its_corner() -> None:
    image = chip_image(4, "shared")
    assert image.pixelColor(6, 8) == theme().owner(4, "shared")
    assert image.pixelColor(11, 1).alpha() == 0
    assert image.pixelColor(10, 10).alpha() > 0


def test_a_chat_without_blocks_has_an_empty_outline() -> None:
    image = chip_image(None, "active")
    assert image.pixelColor(6, 6).alpha() == 0
    assert image.pixelColor(0, 6).alpha() > 0


def test_owners_past_24_differ_by_pattern() -> None:
    assert [pattern_of(number) for number in (0, 23, 24, 47, 48, 63, 64)] == [0, 0, 1, 1, 2, 2, 0]
    images = [chip_image(number, "active") for number in (1, 25, 49)]
    assert images[0] != images[1] != images[2] != images[0]
    assert chip_image(65, "active") == images[0]


def test_a_rectangle_centres_the_chip() -> None:
    image = QImage(40, 24, QImage.Format.Format_ARGB32)
    image.fill(0)
    painter = QPainter(image)
    paint_chip(painter, QRect(0, 0, 40, 24), 0, "active")
    paint_state(painter, QRect(0, 0, 12, 24), "shared")
    painter.end()
    assert image.pixelColor(20, 12) == theme().owner(0, "active")
    assert image.pixelColor(20, 3).alpha() == 0
    assert image.pixelColor(5, 14) == theme().color("state_glyph.shared")


def test_icons_are_drawn_in_the_colour_that_was_asked_for() -> None:
    image = pixmap("square", "error.base", 16, 2.0).toImage()
    assert image.width() == 32
    colours = {
        image.pixelColor(x, y).name()
        for x in range(32)
        for y in range(32)
        if image.pixelColor(x, y).alpha() == 255
    }
    assert colours == {theme().color("error.base").name()}
    assert icon("square") is icon("square")
    with pytest.raises(FileNotFoundError):
        pixmap("no-such-icon")


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [
        (0, "0 MiB"),
        (368_640, "0.35 MiB"),
        (38 * 2_359_296, "85.5 MiB"),
        (1024**3 - 1, "1,024 MiB"),
        (1024**3, "1.00 GiB"),
        (1656 * 2_359_296, "3.64 GiB"),
        (90 * 1024**3, "90.0 GiB"),
    ],
)
def test_memory_is_written_in_mib_and_gib(num_bytes: int, words: str) -> None:
    assert memory_text(num_bytes) == words


def test_blocks_may_be_smaller_than_a_mib() -> None:
    assert block_size_text(368_640) == "360 KiB"
    assert block_size_text(2_359_296) == "2.25 MiB"
