"""Check of a SentencePiece character map before the tokenisers' library walks it.

The map is a length, a trie of 32-bit units (a double array), and the texts that its leaves point
to. The library believes every number in it: a wrong one ends in a panic at the first text that
leads there, in the middle of a chat. So every step that a walk could take is looked at here.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

_LEAF = 1 << 31  # a unit that holds a value; as a node it matches no letter


def check(charsmap: bytes) -> None:
    """Refuse a map that could lead outside itself.

    Raises:
        ValueError: it could; the words say where.
    """
    import numpy as np  # here: few tokenisers bring a map, and all pay for the import

    if len(charsmap) < 8:
        raise ValueError("the character map is cut short")
    (trie_bytes,) = struct.unpack_from("<I", charsmap)
    if trie_bytes % 4 or not 4 <= trie_bytes <= len(charsmap) - 4:
        raise ValueError("the character map is cut short")
    units = np.frombuffer(charsmap, "<u4", trie_bytes // 4, 4)  # [num_units]
    texts = charsmap[4 + trie_bytes :]
    texts.decode("utf-8")  # UnicodeDecodeError is a ValueError
    nodes = np.flatnonzero(units < _LEAF)
    values = units[nodes]
    wide = (values & (1 << 9)) >> 6  # the offset counts in units, or in 256 of them
    children = nodes ^ ((values >> 10).astype(np.int64) << wide.astype(np.int64))
    # The next letter picks one of the 256 units around the child; the root is walked unasked.
    if units[0] >= _LEAF or (children | 255).max(initial=255) >= len(units):
        raise ValueError("the character map leads outside itself")
    has_leaf = ((values >> 8) & 1).astype(bool)
    _check_texts(units[children[has_leaf]] & (_LEAF - 1), texts)


def _check_texts(starts: np.ndarray, texts: bytes) -> None:
    """Each text begins inside, and not in the middle of a letter."""
    if starts.max(initial=0) > len(texts):
        raise ValueError("the character map points behind its texts")
    if any((texts[at : at + 1] or b"a")[0] & 0xC0 == 0x80 for at in starts.tolist()):
        raise ValueError("the character map points into a letter")
