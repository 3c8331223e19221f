"""The real Gemma 3 270M against transformers: ids of its tokeniser, and greedy output.

    python tests/fetch_gemma.py       # once
    python tests/gemma3.py            # about three minutes on two cores

Not collected by pytest: the file is 240 MB and under terms of its own. Tiny models of the same
family are in `tests/engine/model`. transformers reads the same file, in fp32; we run it with
`--precision exact`. Ends with 1 when anything differs.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT.parent), str(ROOT)]

import torch  # noqa: E402
from fetch_gemma import is_whole, model_path  # noqa: E402

from engine.config import EngineConfig  # noqa: E402
from engine.gguf_header import read_header  # noqa: E402
from engine.headless import Headless  # noqa: E402
from engine.messages import SamplingParams, Submit  # noqa: E402
from engine.text import Text  # noqa: E402

NUM_NEW = 48
NEAR = 1e-4  # relative distance of the two best logits below which either token counts
CHUNKS = (16, 512)
FARM = (
    "The farm lay at the end of a long road between two rivers. Every spring the lower fields "
    "stood under water, and every summer they gave the best hay of the valley. "
)
PROMPTS = (
    "The three largest cities of Portugal are",
    "def fibonacci(n):\n    ",
    "Die Hauptstadt von Österreich heißt Wien, und 東京は",
    "".join(f"Day {i}. {FARM}" for i in range(1, 19)) + "On the last day",
)
TEXTS = (
    "",
    " ",
    "Hello, world!",
    "  two spaces, three   inside,\ttabs\t\t and trailing   ",
    "a" + " " * 40 + "b" + " " * 31,
    "line\nline\r\nline\n\n\n  indented\n\n\n\n",
    "def f(x):\n    return {'a': [1, 22, 333], \"b\": x ** 2}  # 100 % sure\n",
    "東京は日本の首都です。天气很好，我们去散步吧。서울은 수도입니다.",  # noqa: RUF001
    "สวัสดีครับ น้ำใจ ภาษาไทย हिन्दी العربية עברית",
    "🦊🇩🇪👨\u200d👩\u200d👧 ☕️ x\u0301 e\u0301 ﬁ ½ ² \u00a0nbsp \u3000wide",
    "\ufeff\u2028\u2029\u200b\x07\x7f\ufffd\U0010ffff",
    "a" * 300 + " " * 77 + "1234567890" * 5,
    "<html><body>&amp; <|not_a_token|> </s> <s> [INST] ▁▁ ▁a",
    "<table><tr><td>user-defined pieces</td></tr></table>",
    "$x_1^2 \\frac{1}{2}$ https://example.org/a?b=c&d=%20 a@b.cd",
)


@dataclass
class Answer:
    """What transformers says to a prompt, and which of its tokens are near ties."""

    num_prompt: int
    tokens: list[int]
    near: list[bool]


def reference(path: Path) -> tuple[Any, list[Answer]]:
    """(its tokeniser, its answers)"""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {
        "gguf_file": path.name,
        "trust_remote_code": False,
        "local_files_only": True,
    }
    tokeniser = AutoTokenizer.from_pretrained(path.parent, **where)
    model = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **where).eval()
    return tokeniser, [answer(model, tokeniser(prompt)["input_ids"]) for prompt in PROMPTS]


def answer(model: Any, ids: list[int]) -> Answer:
    with torch.inference_mode():
        out = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=NUM_NEW,
            min_new_tokens=NUM_NEW,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
    best = torch.cat(out.logits).topk(2).values  # [NUM_NEW, 2]
    near = (best[:, 0] - best[:, 1]) < NEAR * best[:, 0].abs()
    return Answer(len(ids), out.sequences[0, len(ids) :].tolist(), near.tolist())


def check_tokeniser(text: Text, theirs: Any) -> int:
    """How many texts differ, in ids or in what the ids say again."""
    wrong = 0
    for sample in TEXTS:
        ids, expected = text.encode_raw(sample), theirs(sample)["input_ids"]
        same_text = text.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        if ids != expected or not same_text:
            wrong += 1
            print(f"tokeniser: {sample[:40]!r}: {ids[:12]} and {expected[:12]}; {same_text=}")
    return wrong


def compare(got: list[int], expected: Answer) -> str:
    """ "same", or where the first difference is."""
    for place, (ours, theirs) in enumerate(zip(got, expected.tokens, strict=False)):
        if ours != theirs:
            return f"{'near tie' if expected.near[place] else 'DIFFERS'} at {place}"
    return "same" if len(got) == NUM_NEW else f"DIFFERS in length, {len(got)}"


def check_answers(path: Path, expected: list[Answer], chunk_tokens: int) -> list[tuple[str, ...]]:
    """Rows of the table: prompt tokens, chunk, alone, four together."""
    config = EngineConfig(precision="exact", num_blocks=400, chunk_tokens=chunk_tokens)
    params = SamplingParams(max_tokens=NUM_NEW, min_tokens=NUM_NEW)
    with Headless(config, path) as engine:

        def submits() -> list[Submit]:
            return [
                Submit(engine.client.next_request_id(), params, prompt=prompt, owner=i)
                for i, prompt in enumerate(PROMPTS)
            ]

        alone = [engine.run([submit]).outcomes[0] for submit in submits()]
        together = engine.run(submits()).outcomes
    return [
        (
            str(answer.num_prompt),
            str(chunk_tokens),
            one.error or compare(one.token_ids, answer),
            other.error or compare(other.token_ids, answer),
        )
        for answer, one, other in zip(expected, alone, together, strict=True)
    ]


def main() -> int:
    path = model_path()
    if not is_whole(path):
        print(f"{path} is missing or damaged: run `python tests/fetch_gemma.py` first")
        return 2
    started = time.perf_counter()
    tokeniser, expected = reference(path)
    wrong = check_tokeniser(Text.from_gguf(read_header(path).metadata), tokeniser)
    print(f"tokeniser: {len(TEXTS) - wrong} of {len(TEXTS)} texts the same")
    rows = [row for chunk in CHUNKS for row in check_answers(path, expected, chunk)]
    head = ("prompt", "chunk", "alone", "four together")
    for row in [head, *rows]:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, (6, 5, 14, 14), strict=True)))
    ties = sum(sum(answer.near) for answer in expected)
    print(f"{NUM_NEW} tokens each, {ties} near ties, {time.perf_counter() - started:.0f} s")
    differs = any(cell != "same" for row in rows for cell in row[2:])
    return int(wrong > 0 or differs)


if __name__ == "__main__":
    raise SystemExit(main())
