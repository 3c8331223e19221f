"""Themes: what the tokens promise is recomputed, and the application takes one whole."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PySide6.QtGui import QFontInfo, QPalette
from PySide6.QtWidgets import QApplication

from app.render.resources import RESOURCES, icon_svg, tokens
from app.render.theme import ThemeManager, make_theme, style_sheet, theme

THEMES = ("light", "dark")
FOUR = ("content", "chrome", "fill", "selected")
Rgb = npt.NDArray[np.float64]


@pytest.fixture
def manager(qapp: QApplication) -> Iterator[ThemeManager]:
    sheet, palette, font = qapp.styleSheet(), QPalette(qapp.palette()), qapp.font()
    yield ThemeManager()
    qapp.setStyleSheet(sheet)
    qapp.setPalette(palette)
    qapp.setFont(font)


def linear(colour: str) -> Rgb:
    """Linear light of "#RRGGBB", [3] from 0 to 1."""
    value = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    light = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (light[1] + 0.05) / (light[0] + 0.05)


def lowest(inks: list[str], papers: list[str]) -> float:
    return min(contrast(ink, paper) for ink in inks for paper in papers)


def contrast_rows(name: str) -> dict[str, float]:
    """The rows of `measured.contrast`, computed from the colours."""
    t = tokens()[name]
    papers = [t["background"][one] for one in FOUR] + [t["popup"], t["code"]["background"]]
    soft = [t[kind]["soft"] for kind in ("accent", "success", "warn", "error")]
    rows = {
        f"text {kind} on every background": lowest([t["text"][kind]], papers)
        for kind in ("primary", "secondary", "tertiary")
    }
    rows["text primary and secondary on soft fills"] = lowest(
        [t["text"]["primary"], t["text"]["secondary"]], soft
    )
    for kind in ("accent", "success", "warn", "error"):
        rows[f"{kind} on every background"] = lowest([t[kind]["base"]], papers)
        rows[f"{kind} on its soft fill"] = contrast(t[kind]["base"], t[kind]["soft"])
    rows["text on accent, hover, pressed"] = lowest(
        [t["accent"]["on"]], [t["accent"][one] for one in ("base", "hover", "pressed")]
    )
    code = [colour for kind, colour in t["code"].items() if kind != "background"]
    rows["code colours on code background"] = lowest(code, [t["code"]["background"]])
    rows["text on owner tiles, 4 tones"] = min(
        contrast(owner[f"on_{tone}"], owner[tone])
        for owner in t["owner"]
        for tone in ("active", "shared", "cached", "hover")
    )
    rows["active tile against the well (graphics, 3.0)"] = lowest(
        [owner["active"] for owner in t["owner"]], [t["pool"]["well"]]
    )
    rows["focus ring against every background (graphics, 3.0)"] = lowest(
        [t["accent"]["focus"]], papers
    )
    return rows


@pytest.mark.parametrize("name", THEMES)
def test_contrast_is_what_the_tokens_say(name: str) -> None:
    written = tokens()["measured"]["contrast"][name]
    computed = contrast_rows(name)
    assert computed.keys() == written.keys()
    for row, value in computed.items():
        assert value == pytest.approx(written[row], abs=0.011), row


# --- distance of the owner colours in CAM16-UCS (Li et al. 2017) --------------------------------

CAT16 = np.array(
    [
        [0.401288, 0.650173, -0.051461],
        [-0.250268, 1.204414, 0.045854],
        [-0.002079, 0.048952, 0.953127],
    ]
)
XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
# Machado et al. 2009 at severity 1.0, on linear light: protanopia, deuteranopia, tritanopia.
PROTAN = [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998],
]
DEUTAN = [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.011820, 0.042940, 0.968881],
]
TRITAN = [
    [1.255528, -0.076749, -0.178779],
    [-0.078411, 0.930809, 0.147602],
    [0.004733, 0.691367, 0.303900],
]
MACHADO = np.array([PROTAN, DEUTAN, TRITAN])


def compressed(rgb: Rgb, level: float) -> Rgb:
    power = (level * np.abs(rgb) / 100) ** 0.42
    return np.sign(rgb) * 400 * power / (power + 27.13) + 0.1


def cam16_ucs(light: Rgb) -> Rgb:
    """J', a', b' of linear sRGB; average surround, 64 cd/m2, background 20 %."""
    f, c, nc, adapting, background = 1.0, 0.69, 1.0, 64.0, 20.0
    white = XYZ.sum(1) * 100
    k = 1 / (5 * adapting + 1)
    level = 0.2 * k**4 * 5 * adapting + 0.1 * (1 - k**4) ** 2 * (5 * adapting) ** (1 / 3)
    n = background / white[1]
    z, nbb = 1.48 + math.sqrt(n), 0.725 * n**-0.2
    cone_white = CAT16 @ white
    adapt = f * (1 - math.exp((-adapting - 42) / 92) / 3.6)
    gains = adapt * white[1] / cone_white + 1 - adapt
    r, g, b = compressed(gains * (CAT16 @ (XYZ @ light * 100)), level)
    rw, gw, bw = compressed(gains * cone_white, level)
    a_opponent = r - 12 * g / 11 + b / 11
    b_opponent = (r + g - 2 * b) / 9
    hue = math.atan2(b_opponent, a_opponent)
    achromatic = (2 * r + g + b / 20 - 0.305) * nbb
    lightness = 100 * (achromatic / ((2 * rw + gw + bw / 20 - 0.305) * nbb)) ** (c * z)
    eccentricity = 0.25 * (math.cos(hue + 2) + 3.8)
    t = 50000 / 13 * nc * nbb * eccentricity * math.hypot(a_opponent, b_opponent)
    t /= r + g + 21 * b / 20
    chroma = t**0.9 * math.sqrt(lightness / 100) * (1.64 - 0.29**n) ** 0.73
    colourful = math.log(1 + 0.0228 * chroma * level**0.25) / 0.0228
    j = 1.7 * lightness / (1 + 0.007 * lightness)
    return np.array([j, colourful * math.cos(hue), colourful * math.sin(hue)])


def smallest_distance(lights: list[Rgb]) -> float:
    places = [cam16_ucs(light) for light in lights]
    return min(float(np.linalg.norm(p - q)) for p, q in itertools.combinations(places, 2))


@pytest.mark.parametrize("first", [8, 12, 24])
@pytest.mark.parametrize("tone", ["active", "shared"])
@pytest.mark.parametrize("name", THEMES)
def test_owner_colours_are_as_far_apart_as_the_tokens_say(name: str, tone: str, first: int) -> None:
    row = tokens()["measured"]["distance"]["rows"][f"{name} {tone}"][f"first {first}"]
    lights = [linear(owner[tone]) for owner in tokens()[name]["owner"][:first]]
    assert smallest_distance(lights) == pytest.approx(row["normal"][0], abs=0.15)
    # The written figure is the worst of two models of colour blindness; this is one of them.
    for matrix in MACHADO:
        seen = [np.clip(matrix @ light, 0, 1) for light in lights]
        assert smallest_distance(seen) >= row["deficient"][0] - 0.15


# --- the Theme --------------------------------------------------------------------------------


def test_colours_and_sizes_are_found_by_path() -> None:
    light = make_theme("light")
    assert light.color("text.primary").name() == "#191f23"
    assert light.owner(27, "active") == light.color("owner.3.active")
    assert (light.size("icon"), light.size("radius.card"), light.space(3)) == (16.0, 8.0, 12)
    assert light.owner_name(25) == "ochre"
    with pytest.raises(KeyError):
        light.color("text.loud")


def test_every_theme_has_its_own_number() -> None:
    assert make_theme("dark").number != make_theme("dark").number


def test_high_contrast_strengthens_lines_and_hints() -> None:
    strong = make_theme("light", high_contrast=True)
    assert strong.color("hairline") == strong.color("control_border")
    assert strong.color("text.tertiary") == strong.color("text.secondary")


def test_bundled_fonts_are_the_ones_in_use(manager: ThemeManager) -> None:
    assert {"Inter", "JetBrains Mono"} <= set(manager.families)
    base = manager.current.font("base", "semibold")
    assert QFontInfo(base).family() == "Inter"
    assert (base.pixelSize(), base.weight()) == (14, 600)
    assert QFontInfo(manager.current.font("code")).family() == "JetBrains Mono"
    licences = {path.name for path in (RESOURCES / "fonts").glob("*.txt")}
    assert licences == {"Inter-OFL.txt", "JetBrainsMono-OFL.txt"}


def test_forcing_a_theme_swaps_palette_and_style_sheet(qapp, qtbot, manager: ThemeManager) -> None:
    manager.set_choice("light")
    light_sheet = qapp.styleSheet()
    with qtbot.waitSignal(manager.changed):
        manager.set_choice("dark")
    assert theme() is manager.current
    assert theme().name == "dark"
    assert qapp.palette().color(QPalette.ColorRole.Window).name() == "#101315"
    assert qapp.styleSheet() != light_sheet


def test_the_same_choice_again_changes_nothing(qtbot, manager: ThemeManager) -> None:
    manager.set_choice("dark")
    number = theme().number
    with qtbot.assertNotEmitted(manager.changed):
        manager.set_choice("dark")
    assert theme().number == number


def test_an_unknown_choice_is_refused(manager: ThemeManager) -> None:
    with pytest.raises(ValueError, match="sepia"):
        manager.set_choice("sepia")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", THEMES)
def test_style_sheet_has_no_gaps_and_its_images_exist(name, tmp_path: Path) -> None:
    text = style_sheet(make_theme(name), tmp_path)
    assert "$(" not in text
    images = re.findall(r'url\("([^"]+)"\)', text)
    assert images
    assert all(Path(image).is_file() for image in images)


def test_style_sheet_source_names_no_colour() -> None:
    source = (RESOURCES / "style.qss").read_text(encoding="utf-8")
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgba?\(", source)


def test_no_widget_of_the_application_sets_a_style_sheet_or_names_a_colour() -> None:
    root = RESOURCES.parent / "app"
    for path in [*root.glob("views/*.py"), *root.glob("render/*.py")]:
        source = path.read_text(encoding="utf-8")
        if path.name != "theme.py":
            assert "setStyleSheet" not in source, path.name
        assert not re.search(r'QColor\(["\d]|"#[0-9a-fA-F]{6}"', source), path.name


def test_icons_take_colour_and_stroke() -> None:
    svg = icon_svg("search", "#123456", 1.75)
    assert 'stroke="#123456"' in svg
    assert 'stroke-width="1.75"' in svg
    assert "currentColor" not in svg
    assert "Feather" in (RESOURCES / "icons" / "LICENSE").read_text(encoding="utf-8")
