"""Tiny random models of each family: our decoder against transformers' own forward pass."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(params=["reference", "cpu"])
def backend(request):
    return request.param


@torch.no_grad()
def reference_logits(model, tokens):
    return model(torch.tensor([tokens])).logits[0]


def random_tokens(num_tokens, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 131, (num_tokens,), generator=generator).tolist()


def test_every_step_matches_transformers(
    tiny_kind, tiny_folder, tmp_path, load, paged_runner, backend
):
    folder = tmp_path / "model"
    theirs = tiny_folder(tiny_kind, folder)
    tokens = random_tokens(45, seed=3)
    expected = reference_logits(theirs, tokens)
    runner = paged_runner(load(folder, backend=backend), block_tokens=7)
    s = runner.add(tokens)
    done = 0
    for count in (1, 10, 7, 13, 1, 1, 1, 11):
        logits = runner.step({s: count})[s]
        done += count
        torch.testing.assert_close(logits, expected[done - 1], rtol=1e-4, atol=1e-4)
    assert done == len(tokens)


def test_greedy_matches_transformers_in_company(
    tiny_kind, tiny_folder, tmp_path, load, paged_runner, backend
):
    folder = tmp_path / "model"
    theirs = tiny_folder(tiny_kind, folder)
    prompts = [random_tokens(n, seed=n) for n in (1, 16, 23)]
    expected = []
    for prompt in prompts:
        ids = theirs.generate(
            torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=None
        )
        expected.append(ids[0, len(prompt) :].tolist())
    runner = paged_runner(load(folder, backend=backend), block_tokens=16)
    got = {runner.add(prompt): [] for prompt in prompts}
    joins = {0: 0, 1: 3, 2: 5}  # the step at which each sequence joins
    for step in range(60):
        plan = {}
        for s, new in got.items():
            left = len(runner.tokens[s]) - runner.done[s]
            if step >= joins[s] and len(new) < 20:
                plan[s] = min(left, 9)
        if not plan:
            break
        for s, logits in runner.step(plan).items():
            if runner.done[s] == len(runner.tokens[s]):
                got[s].append(int(logits.argmax()))
                runner.tokens[s].append(got[s][-1])
    assert list(got.values()) == expected


def test_window_counts_the_query_itself(tiny_folder, tmp_path, load, paged_runner, backend):
    """One layer, window 8: the last token's logits hang on the newest 8 tokens and no older one."""
    tiny_folder("mistral", tmp_path / "model", num_hidden_layers=1)
    model = load(tmp_path / "model", backend=backend)
    tokens = random_tokens(21, seed=9)

    def last_logits(changed):
        runner = paged_runner(model, block_tokens=4)
        changed_tokens = [7 if i == changed else token for i, token in enumerate(tokens)]
        return runner.read(runner.add(changed_tokens), 6)

    assert 7 not in tokens
    plain = last_logits(None)
    assert torch.equal(last_logits(len(tokens) - 9), plain)
    assert not torch.allclose(last_logits(len(tokens) - 8), plain)


def test_chunk_without_wanted_logits_gives_none(tiny_folder, tmp_path, load):
    from engine.batch import Batch

    tiny_folder("llama", tmp_path / "model")
    model = load(tmp_path / "model")
    kv = model.kv

    class Pool:
        def __init__(self) -> None:
            shape = (4, 4, kv.num_kv_heads, kv.k_dim)
            self.k = [torch.zeros(shape) for _ in range(kv.num_layers)]
            self.v = [torch.zeros(shape) for _ in range(kv.num_layers)]

    batch = Batch(
        token_ids=torch.tensor([5, 6, 7]),
        positions=torch.arange(3),
        slots=(torch.tensor([8, 9, 10]),),
        cu_seqlens_q=torch.tensor([0, 3], dtype=torch.int32),
        context_lens=torch.tensor([3], dtype=torch.int32),
        block_tables=(torch.tensor([[2]], dtype=torch.int32),),
        logit_rows=torch.empty(0, dtype=torch.int64),
        num_decodes=0,
    )
    pool = Pool()
    assert model.forward(batch, pool).shape == (0, 131)
    assert pool.k[2][2, :3].abs().min() > 0  # K and V were stored all the same


def test_fast_mode_is_near_exact(tiny_folder, tmp_path, load, paged_runner):
    tiny_folder("llama", tmp_path / "model")
    tokens = random_tokens(30, seed=1)
    exact, fast = load(tmp_path / "model"), load(tmp_path / "model", precision="fast")
    assert exact.storage == "fp32"
    assert fast.kv.kv_dtype == torch.bfloat16
    assert fast.kv.bytes_per_token * 2 == exact.kv.bytes_per_token
    results = []
    for model in (exact, fast):
        runner = paged_runner(model)
        results.append(runner.read(runner.add(tokens), 8))
    difference = (results[0] - results[1]).norm() / results[0].norm()
    assert 0 < difference < 0.05
