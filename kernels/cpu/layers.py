"""Layers: whole decoder layers as one program of the crew.

For models whose matrices are codes (`kernels.cpu.products`): RMS norms, rotary positions, gated
SiLU. Between the operations everything is float32; one layer is

    x += out of the layer before; norm, to bytes | Q, K, V | norms of heads | rotary, store
    attention of single rows | of chunks | parts put together | to bytes | output
    x += output; norm, to bytes | gate and up | silu, to bytes | down

A step of the starter model with one row has 390 operations: with a call from Python for each it
took 9.4 ms, of which 5.2 in kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kernels.cpu import attention_rows, attention_tiles, crew
from kernels.cpu.attention_parts import find_items, find_row_items, merge_operation
from kernels.cpu.bytes import GROUP
from kernels.cpu.cache_ops import TOKENS, turn_operation
from kernels.cpu.jit import LOCK
from kernels.cpu.layer_parts import (
    ADDED,
    CODES,
    EPS,
    NORM,
    SUM,
    WEIGHT,
    WIDTH,
    GroupItems,
    LayerWeights,
    Matrix,
    Memory,
    Run,
    Shape,
    add_norm_operation,
    can_run,
    head_norm_operation,
)
from kernels.cpu.products import TILE_BYTES, multiply_operation, quantise_operation, tiles_of
from kernels.cpu.tensors import KINDS

# Operations of a layer, in their order.
(
    _NORM_IN, _QKV, _HEADS, _TURN, _ROWS, _TILES, _MERGE_ROWS, _MERGE_TILES, _BYTES, _OUT,
    _NORM_MLP, _UP, _SILU, _DOWN,
) = _KINDS = range(14)  # fmt: skip
_WORDS = 24  # of a record, at most


class LayerProgram:
    """All layers of one model, and the memory that its steps work in.

    Args:
        final_norm: [hidden] float32, after the last layer.
        kv_dtype: of the pools.
        windows: of the layer groups.
    """

    def __init__(
        self,
        layers: Sequence[LayerWeights],
        final_norm: torch.Tensor,
        shape: Shape,
        kv_dtype: torch.dtype,
        windows: Sequence[int],
    ) -> None:
        assert can_run(shape, len(layers))
        self._layers = layers
        self._final_norm = final_norm
        self._shape = shape
        self._windows = windows
        self._capacity = self._workers = 0
        self._num_parts = (0, 0)
        self._table = np.zeros((len(layers), len(_KINDS), crew.ROW), np.int64)
        self._records = np.zeros((len(layers), len(_KINDS), _WORDS), np.int64)
        self._last = np.zeros(_WORDS, np.int64)
        self._last_table = np.zeros(crew.ROW, np.int64)
        by_group = [[] for _ in windows]  # type: list[list[int]]
        for number, layer in enumerate(layers):
            by_group[layer.group].append(number)
        self._by_group = [np.array(numbers) for numbers in by_group]
        self._by_rope = [
            np.array([number for number, layer in enumerate(layers) if layer.rope == rope])
            for rope in range(max(layer.rope for layer in layers) + 1)
        ]
        self._fine = layers[0].qkv.fine
        self._choose_operations(kv_dtype)
        self._fill()

    # --- what stays -----------------------------------------------------------------------------

    def _choose_operations(self, kv_dtype: torch.dtype) -> None:
        shape, kv_kind = self._shape, KINDS[kv_dtype]
        per_word, group = 4 // kv_dtype.itemsize, shape.num_heads // shape.kv_heads
        heads = (shape.dim, shape.dim, group, per_word)
        self._reads_rows = attention_rows.can_read_rows(shape.dim, shape.dim, per_word)
        tiles, tile_bytes, v_vectors = attention_tiles.shape_of(*heads)
        most_rows, self._per_item = attention_tiles.most_rows_of(group)
        self._kinds = [(tiles, tile_bytes, most_rows)]
        functions = {
            _NORM_IN: add_norm_operation(int(self._fine)),
            _NORM_MLP: add_norm_operation(0),
            _TURN: turn_operation(np.float32, kv_kind),
            _TILES: attention_tiles.tiles_operation(np.float32, kv_kind, v_vectors),
            _MERGE_ROWS: merge_operation(np.float32),
            _BYTES: quantise_operation(np.float32, 0, 0),
            _SILU: quantise_operation(np.float32, 1, 0),
        }
        functions[_MERGE_TILES] = functions[_MERGE_ROWS]
        if any(layer.head_norms for layer in self._layers):
            functions[_HEADS] = head_norm_operation()
        if self._reads_rows:
            rows, row_bytes, constants, most = attention_rows.shape_of(*heads)
            functions[_ROWS] = attention_rows.rows_operation(np.float32, kv_kind, *constants)
            self._kinds.insert(0, (rows, row_bytes, most))
        else:
            self._kinds.insert(0, self._kinds[0])
        for kind, function in functions.items():
            self._table[:, kind, crew.FUNCTION] = function
        for number, layer in enumerate(self._layers):
            for kind, matrix in self._matrices(layer):
                self._table[number, kind, crew.FUNCTION] = multiply_operation(
                    np.float32, matrix.bits, int(matrix.fine)
                )
        self._last_table[crew.FUNCTION] = functions[_NORM_MLP]

    def _matrices(self, layer: LayerWeights) -> list[tuple[int, Matrix]]:
        return [(_QKV, layer.qkv), (_OUT, layer.output), (_UP, layer.up), (_DOWN, layer.down)]

    def _fill(self) -> None:
        """What no step changes."""
        shape, records = self._shape, self._records
        at = self._records.ctypes.data
        size = self._records.itemsize * _WORDS
        numbers = np.arange(self._table.shape[0] * len(_KINDS)).reshape(self._table.shape[:2])
        self._table[:, :, crew.RECORD] = at + numbers * size
        self._last_table[crew.RECORD] = self._last.ctypes.data
        floats = records.view(np.float64)
        q_dim, kv_dim = shape.num_heads * shape.dim, shape.kv_heads * shape.dim
        self._q_row = q_row = q_dim + 2 * kv_dim
        for kind, norm in ((_NORM_IN, "input_norm"), (_NORM_MLP, "mlp_norm")):
            weights = [getattr(layer, norm) for layer in self._layers]
            records[:, kind, WEIGHT] = [weight.data_ptr() for weight in weights]
            records[:, kind, WIDTH] = shape.hidden
            floats[:, kind, EPS] = shape.eps
        self._last[[WEIGHT, WIDTH]] = self._final_norm.data_ptr(), shape.hidden
        self._last.view(np.float64)[EPS] = shape.eps
        columns = {_QKV: shape.hidden, _OUT: q_dim, _UP: shape.hidden, _DOWN: shape.intermediate}
        for number, layer in enumerate(self._layers):
            for kind, matrix in self._matrices(layer):
                bias = 0 if matrix.bias is None else matrix.bias.data_ptr()
                records[number, kind, 4:7] = columns[kind] // GROUP, matrix.packed.data_ptr(), bias
                records[number, kind, 8] = matrix.num_rows
            if layer.head_norms:
                weights = [weight.data_ptr() for weight in layer.head_norms]
                records[number, _HEADS, 1:7] = (
                    q_row, shape.num_heads, shape.kv_heads, shape.dim, *weights,
                )  # fmt: skip
                floats[number, _HEADS, 7] = shape.eps
        records[:, _TURN, [1, 2, 4, 6, 7, 8, 9, 17]] = (
            q_row, shape.num_heads, q_row, q_row, shape.kv_heads, shape.dim,
            shape.rotary_dim // 2, TOKENS,
        )  # fmt: skip
        windows = [layer.window for layer in self._layers]
        for kind, (tensor, _, most_rows) in zip((_ROWS, _TILES), self._kinds, strict=True):
            records[:, kind, 1], records[:, kind, 11] = q_row, shape.kv_heads
            records[:, kind, 15], records[:, kind, 19] = tensor.data_ptr(), windows
            floats[:, kind, 21], floats[:, kind, 22] = shape.scale, shape.softcap
            merge = kind + _MERGE_ROWS - _ROWS
            records[:, merge, 5:9] = (
                shape.num_heads, shape.dim, shape.num_heads // shape.kv_heads, most_rows,
            )  # fmt: skip
        for kind, row in ((_BYTES, q_dim), (_SILU, 2 * shape.intermediate)):
            width = row if kind == _BYTES else row // 2
            records[:, kind, 1], records[:, kind, 2] = row, width // GROUP

    # --- memory ---------------------------------------------------------------------------------

    def _reserve(self, num_rows: int, num_parts: tuple[int, int], workers: int) -> None:
        """Memory for a step of so many rows. It is kept: allocations cost as much as products."""
        wanted = (num_rows, *num_parts, workers)
        have = (self._capacity, *self._num_parts, self._workers)
        if all(map(lambda w, h: w <= h, wanted, have)):
            return
        num_rows, *parts, workers = map(max, wanted, have)
        self._capacity, self._num_parts, self._workers = num_rows, (parts[0], parts[1]), workers
        shape = self._shape
        q_dim = shape.num_heads * shape.dim
        widest = max(shape.hidden * (1 + self._fine), q_dim, shape.intermediate)
        memory = [worker_bytes for _, worker_bytes, _ in self._kinds]
        part_bytes = [most * (shape.dim + 2) * 4 for _, _, most in self._kinds]
        sizes = {
            "qkv": num_rows * self._q_row * 4,
            "attended": num_rows * q_dim * 4,
            "wide": num_rows * shape.intermediate * 8,
            "codes": num_rows * widest,
            "scales": num_rows * widest // GROUP * 8,
            "sums": num_rows * widest // GROUP * 4,
            "tiles": workers * TILE_BYTES,
            "norms": workers * shape.hidden * 4,
            "rows": workers * memory[0],
            "chunks": workers * memory[1],
            "row parts": parts[0] * part_bytes[0],
            "chunk parts": parts[1] * part_bytes[1],
        }
        self._memory = {name: Memory(size) for name, size in sizes.items()}
        self._place({name: piece.at for name, piece in self._memory.items()}, q_dim)

    def _place(self, at: dict[str, int], q_dim: int) -> None:
        """Write where everything lies into the records."""
        records, shape = self._records, self._shape
        quantised = (at["codes"], at["scales"], at["sums"])
        for kind in (_NORM_IN, _NORM_MLP):
            records[:, kind, CODES:NORM] = quantised
            records[:, kind, NORM] = at["norms"]
        for kind in (_BYTES, _SILU):
            records[:, kind, 4:7] = quantised
        records[:, _BYTES, 0], records[:, _SILU, 0] = at["attended"], at["wide"]
        outs = {_QKV: at["qkv"], _OUT: 0, _UP: at["wide"], _DOWN: 0}
        for kind, out in outs.items():
            records[:, kind, 0:3], records[:, kind, 7] = quantised, out
            records[:, kind, 11] = at["tiles"]
        records[:, _HEADS, 0] = at["qkv"]
        k_at = at["qkv"] + q_dim * 4
        v_at = k_at + shape.kv_heads * shape.dim * 4
        records[:, _TURN, 0], records[:, _TURN, 3], records[:, _TURN, 5] = at["qkv"], k_at, v_at
        for kind, name in ((_ROWS, "rows"), (_TILES, "chunks")):
            merge, parts = kind + _MERGE_ROWS - _ROWS, at[name[:-1] + " parts"]
            records[:, kind, 16], records[:, kind, 17], records[:, merge, 1] = (
                at[name],
                parts,
                parts,
            )

    # --- a step ---------------------------------------------------------------------------------

    def begin(
        self,
        residual: torch.Tensor,  # [T, hidden] float32, changed by the run
        num_decodes: int,
        starts: Sequence[int],  # [S + 1], first row of each sequence
        contexts: Sequence[int],  # [S]
        slots: Sequence[torch.Tensor],  # of each layer group [T] int64
        tables: Sequence[torch.Tensor],  # of each layer group [S, max_blocks] int32
        turns: Sequence[tuple[torch.Tensor, torch.Tensor]],
    ) -> Run:
        n = num_decodes if self._reads_rows else 0
        chunk_starts = tuple(start - starts[n] for start in starts[n:])
        kv_heads, per_item = self._shape.kv_heads, self._per_item
        groups = []
        for window, some_slots, some_tables in zip(self._windows, slots, tables, strict=True):
            rows = find_row_items(tuple(contexts[:n]), kv_heads, window)
            rest = tuple(contexts[n:])
            chunks = find_items(chunk_starts, rest, kv_heads, per_item, window)
            groups.append(GroupItems(some_slots, some_tables.contiguous(), rows, chunks))
        turns = [(cos.contiguous(), sin.contiguous()) for cos, sin in turns]
        return Run(residual, torch.empty_like(residual), n, groups, turns)

    def advance(
        self,
        run: Run,
        k_pools: Sequence[torch.Tensor],  # of each layer
        v_pools: Sequence[torch.Tensor],
        first: int,
        last: int,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """Compute layers `first` to `last` - 1.

        Args:
            wanted: rows that go on from the last layer's attention; None = all.

        Returns:
            After the last layer, [number of wanted rows, hidden] float32, normed.
        """
        is_end = last == len(self._layers)
        with LOCK:
            workers = crew.num_workers()
            self._set(run, k_pools, v_pools, workers)
            whole = (last - first) * len(_KINDS)
            at = self._table[first].ctypes.data
            if not is_end:
                crew.run(at, whole, workers)
                return None
            if wanted is None:
                crew.run(at, whole, workers)
            else:
                rest = len(_KINDS) - _BYTES
                crew.run(at, whole - rest, workers)
                run = self._only(run, wanted)
                if not len(run.residual):
                    return run.residual
                crew.run(self._table[last - 1, _BYTES].ctypes.data, rest, workers)
            out = torch.empty_like(run.residual)
            self._last[SUM], self._last[ADDED] = run.residual.data_ptr(), run.added.data_ptr()
            self._last[NORM] = out.data_ptr()
            self._last_table[crew.ITEMS] = len(out)
            crew.run(self._last_table.ctypes.data, 1, workers)
        return out

    def _only(self, run: Run, wanted: torch.Tensor) -> Run:
        """Go on with some rows from here."""
        attended = self._memory["attended"].tensor[: len(run.residual) * self._attended_bytes]
        rows = attended.view(torch.float32).view(len(run.residual), -1)[wanted]
        attended[: rows.nbytes].copy_(rows.view(-1).view(torch.uint8))
        residual = run.residual[wanted]
        run = Run(residual, torch.empty_like(residual), run.num_decodes, run.groups, run.turns)
        if len(residual):
            self._set_rows(run)
        return run

    @property
    def _attended_bytes(self) -> int:
        return self._shape.num_heads * self._shape.dim * 4

    def _set(
        self,
        run: Run,
        k_pools: Sequence[torch.Tensor],
        v_pools: Sequence[torch.Tensor],
        workers: int,
    ) -> None:
        """Write this pass into the records."""
        records, table = self._records, self._table
        num_rows, n = len(run.residual), run.num_decodes
        parts = [max(group.rows[2] for group in run.groups)]
        parts.append(max(group.chunks[2] for group in run.groups))
        self._reserve(num_rows, (parts[0], parts[1]), workers)
        self._set_rows(run)
        qkv_at, attended_at = self._memory["qkv"].at, self._memory["attended"].at
        for kind, skipped in ((_ROWS, 0), (_TILES, n)):
            records[:, kind, 0] = qkv_at + skipped * self._q_row * 4
            records[:, kind, 9] = attended_at + skipped * self._attended_bytes
            records[:, kind, 10] = num_rows - skipped
            merge = kind + _MERGE_ROWS - _ROWS
            records[:, merge, 3], records[:, merge, 4] = records[0, kind, 9], num_rows - skipped
        slots = k_pools[0].shape[0] * k_pools[0].shape[1]
        k_at = [pool.data_ptr() for pool in k_pools]
        v_at = [pool.data_ptr() for pool in v_pools]
        for kind, k, v, num in ((_TURN, 12, 13, 16), (_ROWS, 2, 3, 4), (_TILES, 2, 3, 4)):
            records[:, kind, k], records[:, kind, v], records[:, kind, num] = k_at, v_at, slots
        records[:, _TURN, 15] = num_rows
        records[:, [_ROWS, _TILES], 12] = k_pools[0].shape[1]
        for numbers, (cos, sin) in zip(self._by_rope, run.turns, strict=True):
            records[numbers, _TURN, 10], records[numbers, _TURN, 11] = (
                cos.data_ptr(),
                sin.data_ptr(),
            )
        for numbers, group in zip(self._by_group, run.groups, strict=True):
            records[numbers, _TURN, 14] = group.slots.data_ptr()
            width = group.tables.shape[1]
            for kind, skipped, found in ((_ROWS, 0, group.rows), (_TILES, n, group.chunks)):
                items, merges, num_parts = found
                merge = kind + _MERGE_ROWS - _ROWS
                tables_at = group.tables.data_ptr() + skipped * width * 4
                for word, value in (
                    (5, tables_at), (6, width), (7, items.data_ptr()), (8, len(items)),
                    (18, num_parts),
                ):  # fmt: skip
                    records[numbers, kind, word] = value
                records[numbers, merge, 0] = merges.data_ptr()
                records[numbers, merge, 2] = num_parts
                table[numbers, kind, crew.ITEMS] = len(items)
                table[numbers, merge, crew.ITEMS] = len(merges)
        records[0, _NORM_IN, ADDED] = 0  # before the first layer there is nothing to add

    def _set_rows(self, run: Run) -> None:
        """What hangs on the number of rows alone."""
        records, table, num_rows = self._records, self._table, len(run.residual)
        for kind in (_NORM_IN, _NORM_MLP):
            records[:, kind, SUM] = run.residual.data_ptr()
            records[:, kind, ADDED] = run.added.data_ptr()
            table[:, kind, crew.ITEMS] = num_rows
        parts = 1 if num_rows >= self._workers else 2
        for kind in (_BYTES, _SILU):
            records[:, kind, 3] = parts
            table[:, kind, crew.ITEMS] = num_rows * parts
        if self._layers[0].head_norms:
            table[:, _HEADS, crew.ITEMS] = num_rows
        table[:, _TURN, crew.ITEMS] = -(-num_rows // TOKENS)
        for kind, matrix in self._matrices(self._layers[0]):
            grain, tiles, items = tiles_of(matrix.packed, num_rows, self._workers)
            records[:, kind, 3] = num_rows
            records[:, kind, 9], records[:, kind, 10] = grain, tiles
            table[:, kind, crew.ITEMS] = items
        for kind in (_OUT, _DOWN):
            records[:, kind, 7] = run.added.data_ptr()
