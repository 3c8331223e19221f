"""Fixtures of the model tests: a hand-driven paged cache, and tiny models on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.batch import Batch
from engine.config import EngineConfig
from engine.kv_cache import KVCache
from engine.model.loader import LoadedModel, load_model


class PagedRunner:
    """Drives a model by hand: block tables scattered over a pool full of NaN, steps as told. A
    block that has left its group's window is full of NaN again and named 0 in the table."""

    def __init__(self, model: LoadedModel, block_tokens: int = 16, num_blocks: int = 256) -> None:
        self.model = model
        self.groups = model.kv.groups
        self.block_tokens = block_tokens
        num_blocks *= len(self.groups)
        cache = KVCache(model.kv, num_blocks, block_tokens, torch.device("cpu"))
        self.k, self.v = cache.k, cache.v
        self._poison(slice(None))  # reading a slot that nobody wrote must show
        order = torch.Generator().manual_seed(5)
        self.free = torch.randperm(num_blocks, generator=order).tolist()
        self.tokens: list[list[int]] = []
        self.done: list[int] = []
        self.tables: list[list[list[int]]] = []  # per sequence and group

    def _poison(self, blocks: Any) -> None:
        for pool in (*self.k, *self.v):
            pool[blocks] = float("nan")

    def add(self, tokens: list[int]) -> int:
        self.tokens.append(list(tokens))
        self.done.append(0)
        self.tables.append([[] for _ in self.groups])
        return len(self.tokens) - 1

    def step(self, plan: dict[int, int]) -> dict[int, torch.Tensor]:
        """{sequence: new tokens} -> {sequence: logits of its last new token}."""
        order = sorted(plan, key=lambda s: plan[s] != 1)
        for s in order:
            for table in self.tables[s]:
                while len(table) * self.block_tokens < self.done[s] + plan[s]:
                    table.append(self.free.pop())
        places = [range(self.done[s], self.done[s] + plan[s]) for s in order]
        ends = torch.tensor([plan[s] for s in order]).cumsum(0)
        groups = range(len(self.groups))
        batch = Batch(
            token_ids=torch.tensor(
                [self.tokens[s][p] for s, r in zip(order, places, strict=True) for p in r]
            ),
            positions=torch.tensor([p for r in places for p in r]),
            slots=tuple(self._slots(order, places, g) for g in groups),
            cu_seqlens_q=torch.cat((torch.zeros(1, dtype=torch.int64), ends)).int(),
            context_lens=torch.tensor([r.stop for r in places], dtype=torch.int32),
            block_tables=tuple(self._padded([self.tables[s][g] for s in order]) for g in groups),
            logit_rows=ends - 1,
            num_decodes=sum(plan[s] == 1 for s in order),
        )
        logits = self.model.forward(batch, self)
        assert logits.shape == (len(order), self.model.vocab_size)
        assert logits.dtype == torch.float32
        for s in order:
            self.done[s] += plan[s]
            self._leave(s)
        return dict(zip(order, logits, strict=True))

    def _slots(self, order: list[int], places: list[range], group: int) -> torch.Tensor:
        size = self.block_tokens
        return torch.tensor(
            [
                self.tables[s][group][p // size] * size + p % size
                for s, r in zip(order, places, strict=True)
                for p in r
            ]
        )

    @staticmethod
    def _padded(tables: list[list[int]]) -> torch.Tensor:
        width = max(map(len, tables))
        return torch.tensor([t + [0] * (width - len(t)) for t in tables], dtype=torch.int32)

    def _leave(self, s: int) -> None:
        for group, table in zip(self.groups, self.tables[s], strict=True):
            for index in range(group.first_block(self.done[s], self.block_tokens)):
                if table[index]:
                    self._poison(table[index])
                    table[index] = 0

    def read(self, s: int, chunk: int) -> torch.Tensor:
        """Read what is left of a prompt in chunks; logits of its last token."""
        while True:
            count = min(chunk, len(self.tokens[s]) - self.done[s])
            logits = self.step({s: count})[s]
            if self.done[s] == len(self.tokens[s]):
                return logits

    def greedy(self, s: int, chunk: int, num_new: int) -> list[int]:
        token = int(self.read(s, chunk).argmax())
        new = [token]
        while len(new) < num_new:
            self.tokens[s].append(token)
            token = int(self.step({s: 1})[s].argmax())
            new.append(token)
        return new


@pytest.fixture
def paged_runner() -> type[PagedRunner]:
    return PagedRunner


@pytest.fixture
def load() -> Callable[..., LoadedModel]:
    """load(path, precision, backend) on the CPU."""

    def call(path: Path, precision: Any = "exact", backend: Any = None) -> LoadedModel:
        config = EngineConfig(precision=precision, backend=backend)
        return load_model(path, config, torch.device("cpu"), lambda fraction, note: None)

    return call


TINY: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-bias-llama3": {
        "attention_bias": True,
        "mlp_bias": True,
        "max_position_embeddings": 512,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "llama-tied-linear": {
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
    },
    "mistral": {"sliding_window": 8, "head_dim": 24},
    "qwen2": {},
    "qwen2-window": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "qwen3": {"head_dim": 40},
    "smollm3": {"num_hidden_layers": 5},
}


def make_tiny(kind: str, folder: Path, shard: str = "5GB", **changes: Any) -> Any:
    """A random model of a family, saved as a safetensors folder; the transformers model itself."""
    import transformers

    family = kind.split("-")[0]
    classes = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    stem = classes.get(family, "SmolLM3")
    values = {
        "vocab_size": 131,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **TINY[kind],
        **changes,
    }
    config = getattr(transformers, f"{stem}Config")(**values)
    config._attn_implementation = "eager"
    torch.manual_seed(len(kind))
    model = getattr(transformers, f"{stem}ForCausalLM")(config).eval()
    with torch.no_grad():  # loud weights: near ties between random logits would prove nothing
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(1 + noise / 4 if "norm" in name else noise / 4)
    model.save_pretrained(folder, max_shard_size=shard)
    return model


@pytest.fixture(params=sorted(TINY))
def tiny_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tiny_folder() -> Callable[..., Any]:
    return make_tiny
