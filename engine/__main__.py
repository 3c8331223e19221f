"""The headless twin: `python -m engine generate | bench | compare-slab`.

stdout carries one JSON object on one line, last; everything else goes to stderr. Bad input exits
with 2 and one sentence on stderr.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from engine.arguments import command_parser
from engine.config import EngineConfig
from engine.errors import ConfigError, TesseraError
from engine.headless import Headless, Outcome, Run
from engine.memory import peak_rss_bytes
from engine.messages import (
    BlockState,
    ChatMessage,
    ModelInfo,
    SamplingParams,
    StepStats,
    Submit,
    TokenLogprob,
)
from engine.places import data_dir, starter_path
from engine.plan import STEP_PARTS

Report = dict[str, object]


def main(arguments: list[str] | None = None) -> int:
    try:
        args = command_parser(_generate, _bench, _compare_slab).parse_args(arguments)
        report = args.command(args)
    except (TesseraError, OSError) as error:
        print(str(error), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; nothing was written.", file=sys.stderr)
        return 130
    print(json.dumps(report, ensure_ascii=False))
    return 0


# --- what the commands share ------------------------------------------------------------------


def _config(args: argparse.Namespace, prefix_cache: bool, **changes: object) -> EngineConfig:
    values = {
        "block_tokens": args.block_tokens,
        "num_blocks": args.num_blocks,
        "memory_fraction": args.memory_fraction,
        "chunk_tokens": args.chunk_tokens,
        "context_tokens": args.context_tokens,
        "precision": args.precision,
        "backend": args.backend,
        "device": args.device,
        "num_threads": args.threads,
        "prefix_cache": prefix_cache,
        **changes,
    }
    return EngineConfig(**values)


def _model_path(args: argparse.Namespace) -> Path:
    if args.model != "starter":
        return Path(args.model)
    path = starter_path(data_dir(args.data_dir))
    if not path.is_file():
        raise ConfigError(
            f"the starter model is not at {path}; fetch it with `python3 packaging/bootstrap.py "
            "setup`, or with the button in the window"
        )
    return path


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON ({error})") from error


def _engine(info: ModelInfo) -> Report:
    return {
        "model": info.name,
        "device": info.device,
        "device_name": info.device_name,
        "backend": info.backend,
        "path": info.path,
        "precision": info.precision,
        "storage": info.storage,
        "weights_bytes": info.weights_bytes,
        "version": info.version,
    }


# --- generate ---------------------------------------------------------------------------------


def _generate(args: argparse.Namespace) -> Report:
    params = SamplingParams(
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        seed=args.seed,
        max_tokens=args.max_tokens,
        stop=tuple(args.stop),
        repetition_penalty=args.repetition_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        logit_bias=tuple(args.logit_bias),
        min_tokens=args.min_tokens,
        logprobs=args.logprobs,
    )
    chats: list[tuple[ChatMessage, ...]] = [(ChatMessage("user", p),) for p in args.prompt]
    if args.messages:
        chats += _read_chats(args.messages)
    if not chats:
        raise ConfigError("nothing to answer; give --prompt TEXT or --messages FILE.json")
    if any(not chat[-1].content.strip() for chat in chats):
        raise ConfigError("a prompt is empty; write something in it")
    with Headless(_config(args, not args.no_prefix_cache), _model_path(args)) as engine:
        more = args.replies - 1
        submits = [
            Submit(
                i * args.replies,
                params,
                messages=chat,
                owner=i,
                siblings=tuple(range(i * args.replies + 1, i * args.replies + 1 + more)),
            )
            for i, chat in enumerate(chats)
        ]
        run = engine.run(submits)
    for outcome in run.outcomes:
        if outcome.error:
            print(f"request {outcome.request_id}: {outcome.error}", file=sys.stderr)
        elif not args.json:
            print(f"--- {outcome.request_id}\n{outcome.text}", file=sys.stderr)
    if all(outcome.error for outcome in run.outcomes):
        raise SystemExit(2)
    return {
        "requests": [_request(outcome, params.logprobs) for outcome in run.outcomes],
        "pool": _pool(run, engine.info),
        "engine": _engine(engine.info),
    }


def _read_chats(path: Path) -> list[tuple[ChatMessage, ...]]:
    """A list of chats, each a list of {role, content}."""
    try:
        chats = [
            tuple(ChatMessage(message["role"], message["content"]) for message in chat)
            for chat in _read_json(path)  # type: ignore[attr-defined]
        ]
    except (TypeError, KeyError) as error:
        raise ConfigError(f"{path} is not a list of chats of {{role, content}}") from error
    for message in (message for chat in chats for message in chat):
        if message.role not in ("system", "user", "assistant"):
            raise ConfigError(
                f"{path} has the role {message.role!r}; allowed: system, user, assistant"
            )
        if not isinstance(message.content, str):
            raise ConfigError(f"{path} has a content that is not a text")
    if not all(chats):
        raise ConfigError(f"{path} has a chat without messages")
    return chats


def _request(outcome: Outcome, num_logprobs: int | None) -> Report:
    usage = outcome.usage
    row: Report = {
        "id": outcome.request_id,
        "text": outcome.text,
        "token_ids": outcome.token_ids,
        "finish_reason": outcome.finish_reason,
        "prompt_tokens": usage.prompt_tokens if usage else 0,
        "cached_tokens": usage.cached_tokens if usage else 0,
        "prefix_ends_at": _divergence(outcome),
        "ttft_ms": round(usage.ttft_ms, 1) if usage else 0.0,
        "decode_tokens_per_s": round(usage.decode_tokens_per_s, 1) if usage else 0.0,
        "preemptions": usage.preemptions if usage else 0,
        "waste_ratio": round(usage.waste_ratio, 4) if usage else 0.0,
    }
    if num_logprobs is not None:
        row["logprobs"] = [
            {**_logprob(one.chosen), "top": [_logprob(other) for other in one.top]}
            for one in outcome.logprobs
        ]
    return {**row, "error": outcome.error} if outcome.error else row


def _divergence(outcome: Outcome) -> Report | None:
    """The first token that differs from what was cached; None where all that was cached fits."""
    found = outcome.prefix.divergence if outcome.prefix else None
    if found is None:
        return None
    return {
        "index": found.index,
        "token_id": found.token_id,
        "text": found.text,
        "message": found.message,
    }


def _logprob(token: TokenLogprob) -> Report:
    """`text` has replacement characters where the token is only part of a character."""
    return {
        "token_id": token.token_id,
        "text": token.data.decode("utf-8", "replace"),
        "logprob": round(token.logprob, 6),
    }


def _pool(run: Run, info: ModelInfo) -> Report:
    return {
        "num_blocks": info.num_blocks,
        "block_tokens": info.block_tokens,
        "block_bytes": info.block_bytes,
        "peak_used_blocks": max((step.num_used_blocks for step in run.steps), default=0),
        "peak_waste_ratio": round(max((step.waste_ratio for step in run.steps), default=0.0), 4),
        "mean_waste_ratio": round(run.mean_waste_ratio, 4),
        "preemptions": sum(o.usage.preemptions for o in run.outcomes if o.usage),
        "copied_blocks": run.pool.num_copies if run.pool else 0,
        "free_blocks_after": run.count(BlockState.FREE),
        "cached_blocks_after": run.count(BlockState.CACHED),
    }


# --- bench ------------------------------------------------------------------------------------


def _bench(args: argparse.Namespace) -> Report:
    prompts = _read_json(args.prompts_file)
    if not isinstance(prompts, list) or not all(isinstance(text, str) for text in prompts):
        raise ConfigError(f"{args.prompts_file} is not a JSON list of texts")
    if args.sessions < 1:
        raise ConfigError(f"--sessions is {args.sessions}; it must be 1 or more")
    if args.sessions > len(prompts):
        raise ConfigError(
            f"--sessions is {args.sessions} and {args.prompts_file} holds {len(prompts)} prompts: "
            "it must hold one for each session"
        )
    params = SamplingParams(max_tokens=args.max_tokens, ignore_eos=args.ignore_eos)
    config = _config(args, args.prefix_cache, max_running=max(256, args.sessions))
    with Headless(config, _model_path(args)) as engine:
        warm = SamplingParams(max_tokens=min(8, args.max_tokens), ignore_eos=True)
        ids = [engine.client.next_request_id() for _ in range(2 * args.sessions)]
        texts = prompts[: args.sessions]
        # The warm-up leaves nothing behind: it runs without the prefix cache.
        engine.run(
            [
                Submit(i, warm, prompt=text, use_prefix_cache=False)
                for i, text in zip(ids, texts, strict=False)
            ]
        )
        run = engine.run(
            [
                Submit(i, params, prompt=text, owner=n)
                for n, (i, text) in enumerate(zip(ids[args.sessions :], texts, strict=True))
            ]
        )
    failed = next((outcome.error for outcome in run.outcomes if outcome.error), "")
    if failed:
        raise ConfigError(failed)
    report = _bench_report(run, engine.info)
    return {**report, "profile": _profile(run)} if args.profile else report


def _decodes(run: Run) -> list[StepStats]:
    """Steps without prompts."""
    prompts = STEP_PARTS.index("prompts")
    return [s for s in run.steps if s.num_prefill_tokens == 0 and not s.parts_ms[prompts]]


def _profile(run: Run) -> Report:
    """Where a step without prompts spends its time: milliseconds, and the share that is not the
    model. Of steps in which all chats write, if there were some."""
    steps = _decodes(run)
    most = max((step.num_decode_tokens for step in steps), default=0)
    full = [step.parts_ms for step in steps if step.num_decode_tokens == most]
    if not full:
        return {"steps": 0}
    means = [statistics.fmean(parts) for parts in zip(*full, strict=True)]
    by_name = dict(zip(STEP_PARTS, means, strict=True))
    ms = {f"{name}_ms": round(mean, 3) for name, mean in by_name.items() if name != "prompts"}
    share = 1 - by_name["model"] / sum(means)
    return {"steps": len(full), "chats": most, **ms, "share_without_model": round(share, 4)}


def _bench_report(run: Run, info: ModelInfo) -> Report:
    usages = [outcome.usage for outcome in run.outcomes if outcome.usage]
    decode_ms = [step.step_ms for step in _decodes(run)]
    ttfts_ms = [usage.ttft_ms for usage in usages]
    tokens = sum(usage.new_tokens for usage in usages)
    return {
        "sessions": len(usages),
        "tokens": tokens,
        "seconds": round(run.seconds, 4),
        "aggregate_tokens_per_s": round(tokens / run.seconds, 2),
        "decode_ms_per_step": round(statistics.median(decode_ms), 3) if decode_ms else None,
        "ttft_ms_p50": round(statistics.median(ttfts_ms), 2),
        "prompt_tokens_per_s": round(
            sum(usage.prompt_tokens for usage in usages) / (max(ttfts_ms) / 1000), 1
        ),
        "mean_waste_ratio": round(run.mean_waste_ratio, 4),
        "peak_rss_bytes": peak_rss_bytes(),
        "engine": _engine(info),
    }


# --- compare-slab -----------------------------------------------------------------------------


def _compare_slab(args: argparse.Namespace) -> Report:
    from engine.compare_slab import compare_slab  # brings torch

    if not 64 <= args.slab_tokens <= 2**20:
        raise ConfigError(f"--slab-tokens is {args.slab_tokens}, allowed 64 to 1048576")
    if not 20 <= args.requests <= 100_000:
        raise ConfigError(f"--requests is {args.requests}, allowed 20 to 100000")

    said = [""]

    def say(note: str) -> None:
        if not args.json and note != said[-1]:
            print(note, file=sys.stderr)
            said.append(note)

    report, info = compare_slab(
        _model_path(args),
        _config(args, prefix_cache=False),
        args.pool_mib,
        args.slab_tokens,
        args.requests,
        args.sweep,
        say,
    )
    return {**report, "engine": _engine(info)}


if __name__ == "__main__":
    sys.exit(main())
