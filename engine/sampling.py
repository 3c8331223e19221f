"""Logits -> token ids. Owns the order of the filters and the random number of every token.

A row depends on nothing but its own logits, parameters, seed, position and tokens: not on its
place in the batch, its company, or how often it was preempted. Nothing is kept between steps:
penalties count the row's tokens anew (0.2 ms for 8,192 of them). The one uniform number per
(seed, position) comes from Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers:
as easy as 1, 2, 3", SC 2011), whose 32-bit integer rounds give the same number on any device.

All filters keep a prefix of the tokens in descending order of probability (ties: lower id first),
so a row is never sorted as a whole unless its distribution is nearly flat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.errors import SamplingError
from engine.messages import Logprobs, SamplingParams, TokenLogprob

GREEDY_BELOW = 1e-5  # temperatures below this choose the most likely token
NEAR_NATS = 12.0  # tokens this close to the best are tried first: a few hundred of 49,152


@dataclass(frozen=True, slots=True)
class SampleRow:
    """What row i of the logits is to be sampled with."""

    params: SamplingParams
    seed: int  # 0 to 2**64 - 1
    position: int  # of the new token in its sequence
    token_ids: Sequence[int] = ()  # prompt, then output; read by penalties only
    num_prompt: int = 0  # of token_ids
    end_ids: Collection[int] = ()  # tokens that end a reply

    @property
    def is_too_short(self) -> bool:
        """The new token may not be one that ends the reply."""
        params = self.params
        return self.position - self.num_prompt < params.min_tokens and not params.ignore_eos

    @property
    def is_adjusted(self) -> bool:
        """Something besides temperature and filters changes the logits."""
        params = self.params
        return bool(
            params.repetition_penalty != 1.0
            or params.presence_penalty
            or params.frequency_penalty
            or params.logit_bias
            or self.is_too_short
        )


def sample(logits: torch.Tensor, rows: Sequence[SampleRow]) -> list[int | SamplingError]:
    """Choose one token per row of `logits` [L, vocab] fp32.

    A row whose logits are not numbers, or where no token is left to choose, gets a SamplingError
    in its place; the others go on. `logits` is not changed.
    """
    if logits.dim() != 2 or logits.shape[0] != len(rows):
        raise ValueError(f"logits {tuple(logits.shape)} for {len(rows)} rows")
    if not rows:
        return []
    best = logits.argmax(dim=-1)  # [L]
    top = logits.gather(-1, best[:, None])[:, 0]  # [L]; NaN wins an argmax, so it shows up here
    chosen: list[int | SamplingError] = []
    for i, (token, peak) in enumerate(zip(best.tolist(), top.tolist(), strict=True)):
        if not math.isfinite(peak):
            chosen.append(SamplingError("The model gave logits that are not numbers."))
        elif rows[i].is_adjusted:
            chosen.append(_choose_adjusted(logits[i], rows[i]))
        else:
            chosen.append(_choose(logits[i], token, peak, rows[i]))
    return chosen


def _choose(logits: torch.Tensor, best: int, peak: float, row: SampleRow) -> int:
    """One token of `logits` [vocab], whose largest value `peak` belongs to token `best`.

    Row by row on purpose: a sum over a batch may be split over threads in another order than the
    same sum alone, and the answer would depend on the company.
    """
    return best if row.params.temperature < GREEDY_BELOW else _draw(logits, peak, row)


def _choose_adjusted(logits: torch.Tensor, row: SampleRow) -> int | SamplingError:
    logits = adjusted(logits, row)
    best = int(logits.argmax())
    peak = float(logits[best])
    if peak == -math.inf:
        return SamplingError("No token is left to choose from; lower min_tokens or the penalties.")
    return _choose(logits, best, peak, row)


def distribution(logits: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids [n] int64, probabilities [n] float64) that `sample` draws from, most likely first.

    `logits` is one row [vocab], already `adjusted` where the row asks for it. A temperature below
    GREEDY_BELOW leaves the best token alone.
    """
    if params.temperature < GREEDY_BELOW:
        return logits.argmax()[None], torch.ones(1, dtype=torch.float64)
    shifted = _shifted(logits, float(logits.max()), params.temperature)
    ids, values = _descending(shifted, _top_k_floor(shifted, params.top_k))
    weights = values.exp().double()
    kept = _num_kept(weights, weights.cumsum(0), float(weights.sum()), params)
    return ids[:kept], weights[:kept] / weights[:kept].sum()


# --- bias, penalties, min_tokens ----------------------------------------------------------------


def check_bias(params: SamplingParams, vocab_size: int) -> None:
    """Raises SamplingError: logit_bias names a token that the model does not have."""
    for token_id, _ in params.logit_bias:
        if token_id >= vocab_size:
            raise SamplingError(
                f"logit_bias names token {token_id} and this model's tokens are 0 to "
                f"{vocab_size - 1}; leave it out"
            )


def adjusted(logits: torch.Tensor, row: SampleRow) -> torch.Tensor:
    """A changed copy of `logits` [vocab]: bias, penalties and min_tokens of `row`, in this order.

    An impossible token (-inf) stays impossible, and no finite value becomes infinite upwards.
    """
    params = row.params
    logits = logits.to(torch.float32, copy=True)
    if params.logit_bias:
        ids, values = zip(*params.logit_bias, strict=True)
        logits[_ids(ids, logits)] += torch.tensor(values, device=logits.device)
    if params.repetition_penalty != 1.0 and row.token_ids:
        seen = _ids(row.token_ids, logits)  # a token that is there twice is written twice alike
        values = logits[seen]
        penalty = params.repetition_penalty
        logits[seen] = torch.where(values < 0, values * penalty, values / penalty)
    if params.presence_penalty or params.frequency_penalty:
        output = _ids(row.token_ids[row.num_prompt :], logits)
        counts = output.bincount(minlength=logits.shape[0])  # [vocab]
        logits -= params.frequency_penalty * counts
        logits -= params.presence_penalty * (counts > 0)
    if row.is_too_short:
        logits[_ids([i for i in row.end_ids if i < logits.shape[0]], logits)] = -math.inf
    return logits.clamp_(max=torch.finfo(torch.float32).max)


def _ids(token_ids: Collection[int], logits: torch.Tensor) -> torch.Tensor:
    """[n] int64 on the device of `logits`; by way of numpy, which is 8 times faster at it."""
    ids = np.fromiter(token_ids, dtype=np.int64, count=len(token_ids))
    return torch.from_numpy(ids).to(logits.device)


# --- what the model itself thought ---------------------------------------------------------------


def top_logprobs(
    logits: torch.Tensor,
    rows: Sequence[SampleRow],
    tokens: Sequence[int | SamplingError],
    bytes_of: Callable[[int], bytes] = lambda _: b"",
) -> list[tuple[Logprobs, ...]]:
    """For each row: its one Logprobs, or none where it was not asked for or has no token.

    Of `logits` [L, vocab] as the model gave them. Equally likely alternatives: lower id first.
    """
    return [
        ()
        if row.params.logprobs is None or isinstance(token, SamplingError)
        else (_logprobs(logits[i], token, row.params.logprobs, bytes_of),)
        for i, (row, token) in enumerate(zip(rows, tokens, strict=True))
    ]


def _logprobs(
    logits: torch.Tensor, token: int, num_top: int, bytes_of: Callable[[int], bytes]
) -> Logprobs:
    logprobs = logits.double().log_softmax(-1)  # [vocab]
    top: list[TokenLogprob] = []
    if num_top:
        ids, values = _descending(logprobs, _top_k_floor(logprobs, num_top))
        best = zip(ids[:num_top].tolist(), values[:num_top].tolist(), strict=True)
        top = [TokenLogprob(i, value, bytes_of(i)) for i, value in best if value > -math.inf]
    return Logprobs(TokenLogprob(token, float(logprobs[token]), bytes_of(token)), tuple(top))


# --- one draw -----------------------------------------------------------------------------------


def _draw(logits: torch.Tensor, peak: float, row: SampleRow) -> int:
    """One token of `logits` [vocab], whose largest value is `peak`."""
    params = row.params
    shifted = _shifted(logits, peak, params.temperature)
    u = uniform(row.seed, row.position)
    if 0 < params.top_k < shifted.shape[0]:
        token = _pick(shifted, _top_k_floor(shifted, params.top_k), None, params, u)
    else:
        total = float(shifted.exp().sum())
        token = _pick(shifted, -NEAR_NATS, total, params, u)
        if token is None:
            token = _pick(shifted, -math.inf, None, params, u)
    assert token is not None  # a complete candidate list always decides
    return token


def _pick(
    shifted: torch.Tensor, floor: float, total: float | None, params: SamplingParams, u: float
) -> int | None:
    """Inverse distribution function at `u` over the tokens not below `floor`.

    `total` is the weight of all tokens when those not below `floor` are only the head of the
    candidates, None when they are all. Returns None when the head does not decide.
    """
    ids, values = _descending(shifted, floor)
    weights = values.exp().double()
    cumulative = weights.cumsum(0)
    whole = float(cumulative[-1]) if total is None else total
    kept = _num_kept(weights, cumulative, whole, params)
    inside = total is None or kept < len(weights)  # the last kept token is known
    if not inside and (params.top_p < 1.0 or params.min_p > 0.0):
        return None
    mass = float(cumulative[kept - 1]) if inside else whole
    index = int(torch.searchsorted(cumulative[:kept], u * mass, right=True))
    if index >= kept and not inside:
        return None
    return int(ids[min(index, kept - 1)])


def _shifted(logits: torch.Tensor, peak: float, temperature: float) -> torch.Tensor:
    """(logits - peak) / temperature [vocab] fp32: the best token is 0, nothing can overflow."""
    return (logits.float() - peak).div_(temperature)


def _top_k_floor(shifted: torch.Tensor, top_k: int) -> float:
    """The value of the k-th best token; tokens that tie with it stay in, as in transformers."""
    if not 0 < top_k < shifted.shape[0]:
        return -math.inf
    return float(torch.topk(shifted, top_k, sorted=True).values[-1])


def _descending(shifted: torch.Tensor, floor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids [n], values [n]) of the tokens at or above `floor`, best first, lower id on ties."""
    if floor == -math.inf:
        order = shifted.sort(descending=True, stable=True)
        return order.indices, order.values
    ids = (shifted >= floor).nonzero()[:, 0]
    order = shifted[ids].sort(descending=True, stable=True)
    return ids[order.indices], order.values


def _num_kept(
    weights: torch.Tensor, cumulative: torch.Tensor, whole: float, params: SamplingParams
) -> int:
    """How many of the best tokens survive top-p, then min-p. At least one.

    top-p keeps a token while the weight before it is less than top_p of the whole; min-p keeps
    those with at least min_p of the best token's weight, which top-p does not change.
    """
    kept = weights.shape[0]
    if params.top_p < 1.0:
        before = cumulative - weights
        kept = int((before < params.top_p * whole).sum())
    if params.min_p > 0.0:
        kept = min(kept, int((weights >= params.min_p * weights[0]).sum()))
    return max(kept, 1)


# --- random numbers ---------------------------------------------------------------------------

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key after each round
_MASK = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, ...]:
    """Four 32-bit words for a 128-bit counter and a 64-bit key, by ten rounds of Philox."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        left, right = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (right >> 32) ^ c1 ^ k0,
            right & _MASK,
            (left >> 32) ^ c3 ^ k1,
            left & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) of (seed, position): 53 bits, key = seed, counter = position."""
    words = philox4x32(
        (position & _MASK, (position >> 32) & _MASK, 0, 0), (seed & _MASK, (seed >> 32) & _MASK)
    )
    return ((words[0] << 32 | words[1]) >> 11) * 2.0**-53
