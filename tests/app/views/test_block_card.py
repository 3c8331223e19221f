"""The card beside a block: its words, its place, and when it comes and goes."""

from __future__ import annotations

import numpy as np
import pytest
from PySide6.QtCore import QRect, Qt
from PySide6.QtWidgets import QWidget

from app.state.pool import BlockFacts, PoolModel
from app.views.block_card import BlockCard, CardKeeper
from engine.messages import NO_OWNER, BlockState, PoolSnapshot

FREE, CACHED = BlockState.FREE, BlockState.CACHED
ACTIVE, SHARED = BlockState.ACTIVE, BlockState.SHARED


class Glass:
    """A window with a stand-in for the grid on it, over a pool of 40 blocks."""

    def __init__(self, qtbot) -> None:
        self.window, self.pool = QWidget(), PoolModel()
        qtbot.addWidget(self.window)
        self.window.resize(600, 500)
        self.grid = QWidget(self.window)
        self.grid.setGeometry(100, 50, 480, 400)
        self.window.show()
        self.keeper = CardKeeper(self.grid, self.pool, lambda owner: f"Chat {owner}")
        self.set_pool([(0, ACTIVE), (1, CACHED), (1, SHARED)], num_blocks=40)

    def set_pool(self, held: list[tuple[int, BlockState]], num_blocks: int) -> None:
        states = np.zeros(num_blocks, np.uint8)
        owners = np.full(num_blocks, NO_OWNER, np.uint16)
        for at, (owner, state) in enumerate(held):
            states[at], owners[at] = state, owner
        unfilled = np.zeros(num_blocks, np.uint8)
        unfilled[0] = 6
        self.pool.set_snapshot(PoolSnapshot(
            num_blocks, 16, 1000, states.tobytes(), owners.tobytes(), unfilled.tobytes(), 0, 0.0
        ))  # fmt: skip

    def point_at(self, blocks: range, rect: QRect | None = None) -> None:
        self.keeper.point_at(blocks, rect or QRect(200, 100, 8, 8))


@pytest.fixture
def glass(qtbot) -> Glass:
    return Glass(qtbot)


def test_a_pool_with_layer_groups_names_the_group_of_a_block(glass: Glass) -> None:
    card = BlockCard(glass.window)
    facts = BlockFacts(7, ACTIVE, 2, 5, 16, group=1, num_groups=6)
    card.set_block(facts, "Tide")
    assert card.text.endswith("Filled: 5 of 16 slots\nLayers: layer group 2 of 6")
    card.set_block(BlockFacts(7, FREE, None, 0, 16, group=0, num_groups=6), "")
    assert "Layers" not in card.text


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (BlockFacts(1234, FREE, None, 0, 16), "Block 1,234, Free"),
        (BlockFacts(7, ACTIVE, 2, 5, 16),
         "Block 7, Active, one owner\nChat: Tide\nFilled: 5 of 16 slots"),
        (BlockFacts(8, CACHED, 2, 16, 16),
         "Block 8, Cached\nLast chat: Tide\nFilled: 16 of 16 slots"),
        (BlockFacts(9, SHARED, 2, 16, 16),
         "Block 9, Shared\nChat: Tide\nFilled: 16 of 16 slots"),
    ],
)  # fmt: skip
def test_a_block_in_words(glass: Glass, facts, words) -> None:
    card = BlockCard(glass.window)
    card.set_block(facts, "Tide")
    assert card.text == card.accessibleName() == words
    card.grab()


def test_a_cell_lists_the_largest_owners_and_counts(glass: Glass) -> None:
    card = BlockCard(glass.window)
    card.set_cell(range(1024, 2048), [(n, f"Chat {n}", 100 - n) for n in range(9)])
    lines = card.text.split("\n")
    assert lines[0] == "Blocks 1,024 – 2,047, 864 of 1,024 held"  # noqa: RUF001
    assert lines[1:] == [f"Chat {n}: {100 - n}" for n in range(6)]
    card.set_cell(range(4), [])
    assert card.text == "Blocks 0 – 3, 0 of 4 held"  # noqa: RUF001


def test_a_chat_named_like_a_label_keeps_its_number_at_the_right(glass: Glass) -> None:
    """Its row in a cell is laid out as every other one is."""
    card, pictures = BlockCard(glass.window), []
    for title in ("Chat", "Chaf"):
        card.set_cell(range(64), [(1, title, 12)])
        picture = card.grab().toImage()
        pictures.append(picture.copy(picture.width() - 40, 0, 40, picture.height()))
    assert pictures[0] == pictures[1]


@pytest.mark.parametrize("left", [-50, 0, 250, 595])
@pytest.mark.parametrize("top", [0, 200, 380, 470])
def test_the_card_stays_in_the_window_and_off_its_block(glass: Glass, left, top) -> None:
    card = BlockCard(glass.window)
    card.set_block(BlockFacts(7, ACTIVE, 2, 5, 16), "Tide")
    block = QRect(left, top, 12, 12)
    card.place_beside(block)
    assert glass.window.rect().contains(card.geometry())
    assert not card.geometry().intersects(block)


def test_it_comes_after_a_rest_follows_at_once_and_goes(glass: Glass, qtbot) -> None:
    glass.point_at(range(1))
    assert not glass.keeper.is_shown  # the pointer may only pass by
    qtbot.waitUntil(lambda: glass.keeper.is_shown)
    assert glass.keeper.card.text.startswith("Block 0, Active")
    assert "10 of 16" in glass.keeper.card.text
    place = glass.keeper.card.pos()
    glass.point_at(range(1, 2), QRect(230, 130, 8, 8))
    assert glass.keeper.card.text.startswith("Block 1, Cached\nLast chat: Chat 1")
    assert glass.keeper.card.pos() != place
    glass.point_at(range(0))
    assert not glass.keeper.is_shown


def test_a_pointer_that_leaves_in_time_shows_nothing(glass: Glass, qtbot) -> None:
    glass.point_at(range(1))
    assert glass.keeper._timer.isActive()
    glass.point_at(range(0))
    assert not glass.keeper._timer.isActive()
    glass.grid.hide()
    glass.point_at(range(1))
    qtbot.waitUntil(lambda: not glass.keeper._timer.isActive())
    assert not glass.keeper.is_shown  # nor over a grid that is not there


def test_what_it_says_follows_the_pool(glass: Glass, qtbot) -> None:
    glass.point_at(range(2, 3))
    qtbot.waitUntil(lambda: glass.keeper.is_shown)
    assert "Shared" in glass.keeper.card.text
    glass.set_pool([(0, ACTIVE)], num_blocks=40)
    glass.keeper.refresh()
    assert glass.keeper.card.text == "Block 2, Free"
    glass.set_pool([], num_blocks=2)
    glass.keeper.refresh()
    assert not glass.keeper.is_shown  # there is no block 2 any more


def test_a_cell_of_the_overview_gets_titles(glass: Glass, qtbot) -> None:
    glass.point_at(range(4))
    qtbot.waitUntil(lambda: glass.keeper.is_shown)
    assert "Chat 1: 2" in glass.keeper.card.text
    assert "Chat 0: 1" in glass.keeper.card.text


def test_the_pointer_passes_through_the_card(glass: Glass) -> None:
    assert BlockCard(glass.window).testAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
