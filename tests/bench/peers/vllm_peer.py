"""vLLM's CPU build on the shared work."""

from __future__ import annotations

import os
import time

from work import arguments, prompts, report

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="2",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    HF_HUB_OFFLINE="1",
    VLLM_CPU_OMP_THREADS_BIND=f"0-{(os.cpu_count() or 2) - 1}",
)


def main() -> None:
    from vllm import LLM, SamplingParams  # reads the environment

    args = arguments()
    llm = LLM(
        args.model, dtype="bfloat16", max_model_len=4096, max_num_seqs=64,
        enable_prefix_caching=False,
    )  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=args.max_tokens, ignore_eos=True)
    for run in range(args.repeats + 1):
        start_s = time.perf_counter()
        texts = prompts(args.sessions, args.prompt_repeat)
        outputs = llm.generate(texts, params, use_tqdm=False)
        seconds = time.perf_counter() - start_s
        if run:
            report(sum(len(output.outputs[0].token_ids) for output in outputs), seconds)


if __name__ == "__main__":
    main()
