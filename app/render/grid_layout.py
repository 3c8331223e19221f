"""GridLayout: where every block of the pool lies in the grid, and which zoom fits a space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.render.resources import tokens

Level = Literal["overview", "map", "tiles", "blocks"]

ZOOM_STEPS = (3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)
OVERVIEW_CELL = 5  # px, gap of 1 included
TILES_FROM, BLOCKS_FROM = 8, 24
MAX_PAN_SCREENS = 2  # a map longer than this many screens is no map: show the overview


@dataclass(frozen=True, slots=True)
class GridLayout:
    """Blocks in rows of `columns` cells; a cell holds one block, in the overview several.

    `pitch` is the zoom step in device-independent px; `cell` and `gap` are device px, whole
    numbers, so that no tile is smoothed.
    """

    num_blocks: int
    columns: int
    pitch: int
    ratio: float = 1.0
    blocks_per_cell: int = 1

    @property
    def level(self) -> Level:
        if self.blocks_per_cell > 1 or self.pitch < tokens()["panel"]["overview_below_pitch"]:
            return "overview"
        if self.pitch < TILES_FROM:
            return "map"
        return "tiles" if self.pitch < BLOCKS_FROM else "blocks"

    @property
    def cell(self) -> int:
        return max(2, int(self.pitch * self.ratio))

    @property
    def gap(self) -> int:
        return max(1, round((2 if self.level == "blocks" else 1) * self.ratio))

    @property
    def num_cells(self) -> int:
        return -(-self.num_blocks // self.blocks_per_cell)

    @property
    def rows(self) -> int:
        return -(-self.num_cells // self.columns)

    @property
    def width(self) -> float:
        """Of the whole grid, device-independent px."""
        return self.columns * self.cell / self.ratio

    @property
    def height(self) -> float:
        """Of the whole grid, device-independent px."""
        return self.rows * self.cell / self.ratio

    def cell_at(self, x: float, y: float) -> int | None:
        """The cell at a point of the whole grid (device-independent px); None: outside."""
        column, row = int(x * self.ratio // self.cell), int(y * self.ratio // self.cell)
        number = row * self.columns + column
        inside = 0 <= column < self.columns and row >= 0 and 0 <= number < self.num_cells
        return number if inside else None

    def cell_of(self, block: int) -> int:
        return block // self.blocks_per_cell

    def blocks_of(self, cell: int) -> range:
        first = cell * self.blocks_per_cell
        return range(first, min(first + self.blocks_per_cell, self.num_blocks))

    def corner_of(self, cell: int) -> tuple[int, int]:
        """Top left of a cell in the whole grid, device px."""
        row, column = divmod(cell, self.columns)
        return column * self.cell, row * self.cell


def pitch_for_width(width: float) -> int:
    """The pitch for 64 columns in a panel of this width, padding included."""
    fitting = [
        int(pitch)
        for panel_width, pitch in tokens()["panel"]["pitch_by_width"].items()
        if int(panel_width) <= width
    ]
    return max(fitting, default=3)


def fit_layout(
    num_blocks: int, pitch: int, max_width: float, max_height: float, ratio: float = 1.0
) -> GridLayout:
    """The first of these that fits: 64 columns, 128 at half the pitch, the overview.

    In a low window, where a map would need little more than the space there is, the map with
    64 columns stays and pans; the overview is for pools that need several screens.
    """
    columns = int(tokens()["panel"]["columns"])
    maps = [GridLayout(num_blocks, columns, pitch, ratio)]
    if pitch // 2 >= tokens()["panel"]["overview_below_pitch"]:
        maps.append(GridLayout(num_blocks, 2 * columns, pitch // 2, ratio))
    for limit in (max_height, MAX_PAN_SCREENS * max_height):
        for layout in maps:
            if layout.height <= limit:
                return layout
    return overview_layout(num_blocks, max_width, max_height, ratio)


def overview_layout(
    num_blocks: int, max_width: float, max_height: float, ratio: float = 1.0
) -> GridLayout:
    """Cells of 4 + 1 px for 4, 16, 64 ... blocks each, as few as fit the space."""
    columns = max(1, int(max_width // OVERVIEW_CELL))
    blocks_per_cell = 4
    while True:
        layout = GridLayout(num_blocks, columns, OVERVIEW_CELL, ratio, blocks_per_cell)
        if layout.height <= max(max_height, OVERVIEW_CELL) or layout.rows <= 1:
            return layout
        blocks_per_cell *= 4


def next_zoom(pitch: int, step: int) -> int:
    """The zoom step after (`step` 1) or before (-1) a pitch; the last one stays."""
    if step > 0:
        return next((one for one in ZOOM_STEPS if one > pitch), ZOOM_STEPS[-1])
    return next((one for one in reversed(ZOOM_STEPS) if one < pitch), ZOOM_STEPS[0])
