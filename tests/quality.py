"""Does the text stay right? Next-token distributions of `fast` against those of `exact`.

    python tests/quality.py --chunks 1000,64,8,1

The starter model reads 4,000 tokens of prose (Alice's Adventures in Wonderland, Lewis Carroll,
1865, and our own words) and code (our own), in four contexts of 1,000, in chunks of so many rows:
each size is another batch for the products. Limits: mean KL divergence 0.005 nats,
97 % of the most likely tokens the same, perplexity within 0.5 %. Ends with 1 beyond one of them.
The last line on stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.batch import Batch
from engine.config import EngineConfig
from engine.kv_cache import KVSpec
from engine.model.loader import LoadedModel, load_model
from engine.places import data_dir, starter_path
from engine.text import Text

TEXT = Path(__file__).parent / "texts" / "prose_and_code.txt"
CONTEXT, NUM_CONTEXTS, BLOCK_TOKENS = 1000, 4, 16
MOST_KL, LEAST_TOP1, MOST_PERPLEXITY = 0.005, 0.97, 0.005


def load(model: Path, precision: str) -> LoadedModel:
    config = EngineConfig(precision=precision)
    return load_model(model, config, torch.device("cpu"), lambda fraction, note: None)


def contexts(model: LoadedModel) -> list[list[int]]:
    """The text's tokens, cut into contexts."""
    ids = Text.from_gguf(model.tokenizer_source).encode_raw(TEXT.read_text(encoding="utf-8"))
    assert len(ids) >= CONTEXT * NUM_CONTEXTS
    return [ids[i * CONTEXT : (i + 1) * CONTEXT] for i in range(NUM_CONTEXTS)]


def read(model: LoadedModel, ids: list[int], chunk: int) -> torch.Tensor:
    """Log-probabilities of the next token at every place, [len(ids), vocab]."""
    num_blocks = -(-len(ids) // BLOCK_TOKENS) + 1
    cache = _cache(model.kv, num_blocks)
    table = torch.arange(1, num_blocks, dtype=torch.int32).view(1, -1)
    rows = []
    for start in range(0, len(ids), chunk):
        places = torch.arange(start, min(start + chunk, len(ids)))
        n, end = len(places), start + len(places)
        batch = Batch(
            token_ids=torch.tensor(ids[start:end]),
            positions=places,
            slots=(places + BLOCK_TOKENS,),
            cu_seqlens_q=torch.tensor([0, n], dtype=torch.int32),
            context_lens=torch.tensor([end], dtype=torch.int32),
            block_tables=(table,),
            logit_rows=torch.arange(n),
            num_decodes=int(n == 1),
        )
        rows.append(model.forward(batch, cache).log_softmax(-1))
    return torch.cat(rows)


def _cache(kv: KVSpec, num_blocks: int) -> SimpleNamespace:
    def pools(dim: int) -> list[torch.Tensor]:
        shape = (num_blocks, BLOCK_TOKENS, kv.num_kv_heads, dim)
        return [torch.zeros(shape, dtype=kv.kv_dtype) for _ in range(kv.group_size)]

    return SimpleNamespace(k=pools(kv.k_dim), v=pools(kv.v_dim))


def perplexity(texts: list[list[int]], said: list[torch.Tensor]) -> float:
    right = [
        x[:-1].gather(1, torch.tensor(ids[1:])[:, None]) for ids, x in zip(texts, said, strict=True)
    ]
    return math.exp(-float(torch.cat(right).mean()))


def compare(
    texts: list[list[int]], exact: list[torch.Tensor], fast: Iterator[torch.Tensor]
) -> dict[str, float]:
    kl, same, said = [], [], []
    for p, q in zip(exact, fast, strict=True):
        kl.append((p.exp() * (p - q)).sum(-1))
        same.append((p.argmax(-1) == q.argmax(-1)).float())
        said.append(q)
    before, after = perplexity(texts, exact), perplexity(texts, said)
    return {
        "mean_kl": round(float(torch.cat(kl).mean()), 5),
        "max_kl": round(float(torch.cat(kl).max()), 3),
        "top1": round(float(torch.cat(same).mean()), 4),
        "perplexity": round(after, 3),
        "perplexity_change": round(after / before - 1, 5),
    }


def is_right(row: dict[str, float]) -> bool:
    return (
        row["mean_kl"] <= MOST_KL
        and row["top1"] >= LEAST_TOP1
        and abs(row["perplexity_change"]) <= MOST_PERPLEXITY
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", default="1000,64,8,1")
    args = parser.parse_args()
    path = starter_path(data_dir(None))
    model = load(path, "exact")
    texts = contexts(model)
    exact = [read(model, ids, CONTEXT) for ids in texts]
    model = load(path, "fast")
    rows = []
    for chunk in map(int, args.chunks.split(",")):
        found = compare(texts, exact, (read(model, ids, chunk) for ids in texts))
        rows.append({"storage": model.storage, "rows": chunk, **found})
        print(rows[-1], flush=True)
    print(json.dumps({"exact_perplexity": round(perplexity(texts, exact), 3), "rows": rows}))
    sys.exit(not all(map(is_right, rows)))


if __name__ == "__main__":
    main()
