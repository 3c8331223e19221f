"""OpenVINO GenAI on the shared work: continuous batching on the CPU."""

from __future__ import annotations

import time

import openvino_genai
from work import arguments, prompts, report


def main() -> None:
    args = arguments()
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_seqs = 2, 64
    scheduler.enable_prefix_caching = False
    pipe = openvino_genai.ContinuousBatchingPipeline(args.model, scheduler, "CPU", {})
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = args.max_tokens, True, False
    for run in range(args.repeats + 1):
        start_s = time.perf_counter()
        texts = prompts(args.sessions, args.prompt_repeat)
        handles = [pipe.add_request(number, text, config) for number, text in enumerate(texts)]
        while pipe.has_non_finished_requests():
            pipe.step()
        seconds = time.perf_counter() - start_s
        del handles
        if run:
            report(args.sessions * args.max_tokens, seconds)


if __name__ == "__main__":
    main()
