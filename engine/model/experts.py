"""Experts: which layers have a mixture of experts in place of their MLP, and how it chooses."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import BadFileError
from engine.model.families import Family
from engine.model.getter import Getter

_MOST_EXPERTS = 1024


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of every layer in `layers`."""

    num_experts: int
    num_chosen: int  # of them, for each token
    intermediate_size: int  # of one expert
    normalised: bool  # the chosen ones' shares are made to add up to 1
    layers: tuple[bool, ...]  # False: an MLP as usual


def hf_experts(get: Getter, family: Family, num_layers: int, name: str) -> Experts | None:
    """From a config.json; None where every layer has an MLP.

    Raises:
        BadFileError: an impossible value.
    """
    if not family.experts_key:
        return None
    num_experts = get.whole(family.experts_key, family.num_experts)
    num_chosen = get.whole("num_experts_per_tok", family.num_chosen)
    if not num_chosen <= num_experts <= _MOST_EXPERTS:
        raise BadFileError(
            f"{name} chooses {num_chosen:,} of {num_experts:,} experts, and at most "
            f"{_MOST_EXPERTS:,} can be run: fetch it again"
        )
    size_key = family.expert_size_key
    normalised = family.normalised
    return Experts(
        num_experts=num_experts,
        num_chosen=num_chosen,
        intermediate_size=get.whole(size_key, family.expert_size),
        normalised=get.flag(normalised, False) if isinstance(normalised, str) else normalised,
        layers=_layers(get, num_layers) if family.some_layers_dense else (True,) * num_layers,
    )


def _layers(get: Getter, num_layers: int) -> tuple[bool, ...]:
    every = get.whole("decoder_sparse_step", 1)
    dense = get.numbers("mlp_only_layers")
    return tuple((i + 1) % every == 0 and i not in dense for i in range(num_layers))
