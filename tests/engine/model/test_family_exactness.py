"""Tiny random models of many families: token for token what transformers generates.

Each family runs alone with several chunk sizes, and five sequences together that join one after
the other. `pytest -s` prints the table of families and conditions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from kernels.dispatch import choose

NUM_NEW = 48
CHUNKS = (1, 7, 16, 64)
LENGTHS = (1, 5, 23, 40, 70)  # of the prompts; the windows are 16
NEAR = 1e-4  # relative distance of the two best logits below which either token counts
VOCAB = 307

# Head sizes 80 and 96, and 3 or 7 query heads for each KV head, where the family allows.
ODD_80_3 = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 80}
ODD_96_7 = {"num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 96}
EVEN_80_3 = {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 240}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2": (
        "Gemma2",
        {**ODD_96_7, "hidden_size": 56, "sliding_window": 16, "query_pre_attn_scalar": 80},
    ),
    "gemma2 biases, uncapped": (
        "Gemma2",
        {
            **ODD_80_3,
            "sliding_window": 16,
            "attention_bias": True,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
    ),
    "gemma3_text": (
        "Gemma3Text",
        {**ODD_80_3, "sliding_window": 16, "num_hidden_layers": 7, "query_pre_attn_scalar": 60},
    ),
    "gemma3_text linear": (
        "Gemma3Text",
        {
            **ODD_80_3,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "final_logit_softcapping": 20.0,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
            },
        },
    ),
    "phi3": ("Phi3", EVEN_80_3),
    "phi3 partial, window": (
        "Phi3",
        {
            **EVEN_80_3,
            "sliding_window": 16,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.75,
            },
        },
    ),
    "olmo2": ("Olmo2", {**EVEN_80_3, "attention_bias": True}),
    "granite": (
        "Granite",
        {
            **EVEN_80_3,
            "attention_multiplier": 0.09,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "logits_scaling": 5.0,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "starcoder2": ("Starcoder2", {**EVEN_80_3, "sliding_window": 16}),
    "starcoder2 plain": ("Starcoder2", {**EVEN_80_3, "use_bias": False}),
    "gpt_neox": ("GPTNeoX", {"num_attention_heads": 3, "hidden_size": 240}),
    "gpt_neox in turn": (
        "GPTNeoX",
        {
            "num_attention_heads": 2,
            "hidden_size": 192,
            "use_parallel_residual": False,
            "hidden_act": "gelu_new",
            "attention_bias": False,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 1.0,
            },
        },
    ),
    "cohere2": (
        "Cohere2",
        {**EVEN_80_3, "num_hidden_layers": 5, "sliding_window": 16, "attention_bias": True},
    ),
    "stablelm": ("StableLm", {**EVEN_80_3, "use_qkv_bias": True}),
    "stablelm parallel": (
        "StableLm",
        {**EVEN_80_3, "use_parallel_residual": True, "qk_layernorm": True},
    ),
    "llama yarn": ("Llama", {**ODD_80_3, "rope_parameters": YARN}),
}


@dataclass
class Prompt:
    """A prompt, what transformers says to it, and which of its tokens are near ties."""

    tokens: list[int]
    answer: list[int]
    near: list[bool]


@dataclass
class Proof:
    """A family's model on disk and its reference; `row` holds the near ties of each condition."""

    name: str
    folder: Any
    prompts: list[Prompt]
    row: dict[str, int] = field(default_factory=dict)

    def check(self, condition: str, prompt: Prompt, got: list[int]) -> None:
        """Compare tokens that were each chosen after the reference's own."""
        ties = 0
        for place, (ours, theirs) in enumerate(zip(got, prompt.answer, strict=True)):
            if ours != theirs:
                assert prompt.near[place], f"{self.name}, {condition}: token {place} differs"
                ties += 1
        self.row[condition] = self.row.get(condition, 0) + ties


def make_model(stem: str, changes: dict[str, Any], folder: Any) -> Any:
    import transformers

    values = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 88,
        "num_hidden_layers": 3,
        "max_position_embeddings": 256,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }
    config = getattr(transformers, f"{stem}Config")(**values)
    config._attn_implementation = "eager"
    torch.manual_seed(7)
    kind = stem.removesuffix("Text")
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():  # loud weights: near ties between random logits would prove nothing
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            gemma = "Gemma" in stem  # it adds 1 to norms, and makes embeddings loud itself
            if parameter.ndim == 1:
                one = "norm" in name and name.endswith("weight")
                noise = noise if gemma else noise / 4 + one
            elif gemma or "embed" not in name:
                noise *= (1 if "embed" in name else 3) / parameter.shape[-1] ** 0.5
            parameter.copy_(noise)
    model.save_pretrained(folder)
    return model


def ask(model: Any, num_tokens: int) -> Prompt:
    random = torch.Generator().manual_seed(num_tokens)
    tokens = torch.randint(3, VOCAB, (num_tokens,), generator=random)
    out = model.generate(
        tokens[None],
        attention_mask=torch.ones(1, num_tokens, dtype=torch.long),
        max_new_tokens=NUM_NEW,
        do_sample=False,
        eos_token_id=None,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.cat(out.logits).topk(2).values  # [NUM_NEW, 2]
    near = (best[:, 0] - best[:, 1]) < NEAR * best[:, 0].abs()
    return Prompt(tokens.tolist(), out.sequences[0, num_tokens:].tolist(), near.tolist())


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Products this small only wait for a second thread, long where others want the cores."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # Numba's pool sets torch's number as well when it starts: let it start now.
    empty = torch.zeros(1, 1, 8)
    ints = torch.ones(1, dtype=torch.int32)
    choose(torch.device("cpu"), torch.float32, "cpu").paged_decode(
        empty, empty[None], empty[None], ints[None] - 1, ints, 1.0
    )
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module", params=FAMILIES)
def proof(request, tmp_path_factory, one_thread):
    folder = tmp_path_factory.mktemp("family")
    model = make_model(*FAMILIES[request.param], folder)
    made = Proof(request.param, folder, [ask(model, length) for length in LENGTHS])
    words = {token for prompt in made.prompts for token in prompt.answer}
    assert len(words) > 15, "a model that says one word whatever it read proves little"
    yield made
    cells = ", ".join(f"{condition}: {ties}" for condition, ties in made.row.items())
    print(f"\n{made.name}: near ties {cells}")


def test_alone_in_chunks(proof, load, paged_runner):
    model = load(proof.folder)
    prompt = proof.prompts[-1]
    for chunk in CHUNKS:
        runner = paged_runner(model, block_tokens=16)
        s = runner.add(prompt.tokens)
        got = [int(runner.read(s, chunk).argmax())]
        for token in prompt.answer[:-1]:
            runner.tokens[s].append(token)
            got.append(int(runner.step({s: 1})[s].argmax()))
        proof.check(f"chunk {chunk}", prompt, got)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_five_together(proof, load, paged_runner, backend):
    runner = paged_runner(load(proof.folder, backend=backend), block_tokens=7)
    got = {runner.add(prompt.tokens): [] for prompt in proof.prompts}
    for step in range(200):
        plan = {}
        for s, new in got.items():
            if step >= 3 * s and len(new) < NUM_NEW:  # one joins every third step
                plan[s] = min(len(runner.tokens[s]) - runner.done[s], 9)
        if not plan:
            break
        for s, logits in runner.step(plan).items():
            if runner.done[s] == len(runner.tokens[s]):
                runner.tokens[s].append(proof.prompts[s].answer[len(got[s])])
                got[s].append(int(logits.argmax()))
    for s, new in got.items():
        proof.check(f"five together ({backend})", proof.prompts[s], new)
