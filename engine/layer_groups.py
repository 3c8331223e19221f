"""LayerGroup: layers whose K and V lie in the same blocks, and how a model's layers are grouped.

All groups share one pool of equal blocks. A model whose layers all see equally far has one group.
Where full and windowed layers are mixed, each kind is cut into groups of one size, so that the
blocks of windowed layers can be given back once they have left the window. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Of all layers, what groups may be filled up with so that they are of one size: the pool pays for
# it in every block. Gemma 3 1B (22 windowed, 4 full) comes to 7 groups of 4 with 2 of 26 too many.
MAX_PADDING = 0.1


@dataclass(frozen=True, slots=True)
class LayerGroup:
    layers: tuple[int, ...]  # of the model; their place here is their place in the block
    window: int = 0  # newest tokens that these layers see, the present one included; 0 = all

    def tokens_gone(self, num_tokens: int) -> int:
        """How many of `num_tokens` computed tokens the next one does not see."""
        return max(0, num_tokens - self.window + 1) if self.window else 0

    def first_block(self, num_tokens: int, block_tokens: int) -> int:
        """The first block of a table that is still needed when `num_tokens` are computed."""
        return self.tokens_gone(num_tokens) // block_tokens

    def most_blocks(self, num_tokens: int, step_tokens: int, block_tokens: int) -> int:
        """Blocks that a sequence of `num_tokens` holds at most, computed `step_tokens` a step."""
        blocks = -(-num_tokens // block_tokens)
        if not self.window:
            return blocks
        seen = self.window - 1 + step_tokens  # consecutive tokens, from anywhere in a block
        return min(blocks, (seen + block_tokens - 2) // block_tokens + 1)


def group_layers(windows: Sequence[int]) -> tuple[LayerGroup, ...]:
    """Groups for layers with these windows (0 = full), the fewest that waste no more than
    `MAX_PADDING` on filling up. Those of full layers come first."""
    kinds = [
        (window, [i for i, w in enumerate(windows) if w == window])
        for window in sorted(set(windows), key=lambda w: (w > 0, w))
    ]
    size = next(n for n in range(len(windows), 0, -1) if _padding(kinds, n) <= MAX_PADDING)
    return tuple(
        LayerGroup(tuple(layers[start : start + size]), window)
        for window, layers in kinds
        for start in range(0, len(layers), size)
    )


def group_size(groups: Sequence[LayerGroup]) -> int:
    """Layers that a block has room for."""
    return max(len(group.layers) for group in groups)


def layer_places(groups: Sequence[LayerGroup]) -> dict[int, tuple[int, int]]:
    """Layer -> (its group, its place in that group's blocks)."""
    return {
        layer: (number, place)
        for number, group in enumerate(groups)
        for place, layer in enumerate(group.layers)
    }


def _padding(kinds: list[tuple[int, list[int]]], size: int) -> float:
    num_layers = sum(len(layers) for _, layers in kinds)
    padded = sum(-(-len(layers) // size) * size for _, layers in kinds)
    return padded / num_layers - 1


ONE_GROUP = (LayerGroup((0,)),)
