"""Seeds of the fuzzer: whole little models, a few kB each, as the bytes of their files.

`GGUFS` and `FOLDERS` give, for each name, a maker of {file name: bytes}. A GGUF also comes as its
parts, so that a mutation can aim at a length, a count, a type, a size or an offset.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Files = dict[str, bytes]
HIDDEN, INNER, HEADS = 32, 32, 2  # 32: a row is one block of the 4-bit and 8-bit types


# --- GGUF --------------------------------------------------------------------------------------


@dataclass(slots=True)
class GgufParts:
    """A GGUF before it is laid out. `tensors`: name -> (dims, type number, bytes)."""

    metadata: dict[str, Any]
    tensors: dict[str, tuple[tuple[int, ...], int, bytes]]
    spots: list[tuple[int, str]] = field(default_factory=list)  # of the file: (place, layout)

    def file(self) -> bytes:
        """Lay it out, and note in `spots` where each number of the header lies."""
        out = bytearray(b"GGUF")
        self.spots = []
        self._number(out, "<I", 3)
        self._number(out, "<Q", len(self.tensors))
        self._number(out, "<Q", len(self.metadata))
        for key, value in self.metadata.items():
            self._text(out, key)
            self._value(out, value)
        data = b""
        for name, (dims, kind, raw) in self.tensors.items():
            self._text(out, name)
            self._number(out, "<I", len(dims))
            for size in dims:
                self._number(out, "<Q", size % (1 << 64))
            self._number(out, "<I", kind)
            self._number(out, "<Q", len(data))
            data += raw + bytes(-len(raw) % 32)
        return bytes(out + bytes(-len(out) % 32)) + data

    def _number(self, out: bytearray, layout: str, value: float) -> None:
        self.spots.append((len(out), layout))
        out += struct.pack(layout, value)

    def _text(self, out: bytearray, text: str) -> None:
        raw = text.encode("utf-8", "surrogatepass")
        self._number(out, "<Q", len(raw))
        out += raw

    def _value(self, out: bytearray, value: Any) -> None:
        kind = _kind(value)
        self._number(out, "<I", kind)
        if kind != 9:
            self._item(out, kind, value)
            return
        kind = _kind(value[0]) if value else 4
        if any(_kind(item) != kind for item in value):
            kind, value = 8, [str(item) for item in value]
        self._number(out, "<I", kind)
        self._number(out, "<Q", len(value))
        for item in value:
            self._item(out, kind, item)

    def _item(self, out: bytearray, kind: int, value: Any) -> None:
        if kind == 8:
            self._text(out, value)
        else:
            self._number(out, {4: "<I", 11: "<q", 10: "<Q", 12: "<d", 7: "<?"}[kind], value)


def _kind(value: Any) -> int:
    if isinstance(value, bool):
        return 7
    if isinstance(value, int):
        return 4 if 0 <= value < 1 << 32 else 11 if -(1 << 63) <= value < 1 << 63 else 10
    return 12 if isinstance(value, float) else 8 if isinstance(value, str) else 9


def _tensor(shape: tuple[int, ...], kind: int = 0) -> tuple[tuple[int, ...], int, bytes]:
    """A tensor of ones, or of some zero-ish blocks: the values do not matter here."""
    count = int(np.prod(shape))
    if kind == 0:
        raw = np.full(count, 0.1, "<f4").tobytes()
    elif kind in (1, 30):
        raw = np.full(count, 0.1, "<f2").tobytes()
    else:
        raw = bytes(count // 32 * {2: 18, 3: 20, 8: 34}[kind])
    return shape[::-1], kind, raw


def _gguf(
    family: str, tokeniser: Mapping[str, Any], kind: int = 0, extra: tuple[str, ...] = ()
) -> GgufParts:
    metadata: dict[str, Any] = {"general.architecture": family, "general.name": "tiny"}
    sizes = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": HIDDEN,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 100.0,
    }
    if family == "gemma2":
        sizes |= {"attention.key_length": 16, "attention.value_length": 16}
        sizes |= {"attention.sliding_window": 8, "attn_logit_softcapping": 50.0}
    metadata |= {f"{family}.{key}": value for key, value in sizes.items()}
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in tokeniser.items()}
    metadata["tokenizer.chat_template"] = "{{ messages[0].content }}"
    width = HIDDEN // HEADS
    tensors = {
        "token_embd.weight": _tensor((len(tokeniser["tokens"]), HIDDEN), kind),
        "output_norm.weight": _tensor((HIDDEN,)),
        "blk.0.attn_q.weight": _tensor((HIDDEN, HIDDEN), kind),
        "blk.0.attn_k.weight": _tensor((width, HIDDEN), kind),
        "blk.0.attn_v.weight": _tensor((width, HIDDEN), 1),
        "blk.0.attn_output.weight": _tensor((HIDDEN, HIDDEN), kind),
        "blk.0.ffn_gate.weight": _tensor((INNER, HIDDEN), kind),
        "blk.0.ffn_up.weight": _tensor((INNER, HIDDEN), kind),
        "blk.0.ffn_down.weight": _tensor((HIDDEN, INNER), kind),
    }
    for part in ("attn_norm", "ffn_norm", *extra):
        tensors[f"blk.0.{part}.weight"] = _tensor((HIDDEN,))
    if family == "qwen2":
        for part, rows in (("attn_q", HIDDEN), ("attn_k", width), ("attn_v", width)):
            tensors[f"blk.0.{part}.bias"] = _tensor((rows,))
    return GgufParts(metadata, tensors)


def _scored() -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", "<0x41>", "a", "b", "\u2581", "\u2581a", "ab", "<turn>"]
    return {
        "model": "llama",
        "tokens": tokens,
        "scores": [-float(i) for i in range(len(tokens))],
        "token_type": [2, 3, 3, 6, 1, 1, 1, 1, 1, 4],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_bos_token": True,
    }


def _merged() -> dict[str, Any]:
    return {
        "model": "gpt2",
        "pre": "qwen2",
        "tokens": ["a", "b", "c", "\u0120", "ab", "\u0120a", "<|im_start|>", "<|im_end|>"],
        "merges": ["a b", "\u0120 a"],
        "token_type": [1, 1, 1, 1, 1, 1, 3, 3],
        "bos_token_id": 6,
        "eos_token_id": 7,
    }


GGUFS: dict[str, Callable[[], GgufParts]] = {
    "llama": lambda: _gguf("llama", _scored()),
    "qwen2": lambda: _gguf("qwen2", _merged(), kind=8),
    "gemma2": lambda: _gguf(
        "gemma2", _scored(), kind=2, extra=("post_attention_norm", "post_ffw_norm")
    ),
}


# --- folders ------------------------------------------------------------------------------------


def dumped(value: object) -> bytes:
    return json.dumps(value).encode()


def safetensors(table: dict[str, Any], data: bytes) -> bytes:
    header = dumped(table)
    return struct.pack("<Q", len(header)) + header + data


def _weights(shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        table[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return safetensors(table, bytes(at))


def _shapes(num_tokens: int) -> dict[str, tuple[int, ...]]:
    width, layer = HIDDEN // HEADS, "model.layers.0"
    return {
        "model.embed_tokens.weight": (num_tokens, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        f"{layer}.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
        f"{layer}.self_attn.k_proj.weight": (width, HIDDEN),
        f"{layer}.self_attn.v_proj.weight": (width, HIDDEN),
        f"{layer}.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
        f"{layer}.mlp.gate_proj.weight": (INNER, HIDDEN),
        f"{layer}.mlp.up_proj.weight": (INNER, HIDDEN),
        f"{layer}.mlp.down_proj.weight": (HIDDEN, INNER),
        f"{layer}.input_layernorm.weight": (HIDDEN,),
        f"{layer}.post_attention_layernorm.weight": (HIDDEN,),
    }


def _config(num_tokens: int, **more: Any) -> bytes:
    values = {
        "model_type": "llama",
        "vocab_size": num_tokens,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "eos_token_id": [2],
    }
    return dumped({**values, **more})


def _json_folder() -> Files:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    words = ["<s>", "a", "</s>", "b", "\u0120", "ab", "\u0120a"]
    vocab = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab, [("a", "b"), ("\u0120", "a")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(one, special=True) for one in ("<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 0)])
    rope = {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}
    return {
        "config.json": _config(len(words), rope_parameters=rope),
        "model.safetensors": _weights(_shapes(len(words))),
        "tokenizer.json": tokenizer.to_str().encode(),
        "tokenizer_config.json": dumped(
            {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ 1 }}"}
        ),
        "special_tokens_map.json": dumped({"unk_token": {"content": "<s>"}}),
        "generation_config.json": dumped({"eos_token_id": [2, 0]}),
        "chat_template.jinja": b"{{ messages[0].content }}",
    }


def _sentencepiece_folder(kind: str) -> Files:
    import sentencepiece

    model = io.BytesIO()
    lines = ["the dog and the fox", "a chat shows the memory", "ab abc abcd \uff41\uff42"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=kind,
        vocab_size=32,
        character_coverage=1.0,
        hard_vocab_limit=False,
        normalization_rule_name="identity" if kind == "bpe" else "nmt_nfkc",
        minloglevel=2,
    )
    raw = model.getvalue()
    num_tokens = sentencepiece.SentencePieceProcessor(model_proto=raw).get_piece_size()
    shapes = list(_shapes(num_tokens + 1).items())
    parts = {"model-1.safetensors": dict(shapes[:4]), "model-2.safetensors": dict(shapes[4:])}
    index = {name: file for file, part in parts.items() for name in part}
    added = {str(num_tokens): {"content": "<turn>", "special": True, "lstrip": False}}
    return {
        "config.json": _config(num_tokens + 1, sliding_window=8, model_type="mistral"),
        "model.safetensors.index.json": dumped({"metadata": {}, "weight_map": index}),
        **{file: _weights(part) for file, part in parts.items()},
        "tokenizer.model": raw,
        "tokenizer_config.json": dumped(
            {"added_tokens_decoder": added, "add_bos_token": True, "bos_token": "<s>"}
        ),
    }


def _other_folder() -> Files:
    """A family that only transformers knows: layer norms without weights, else a Llama."""
    files = _json_folder()
    shapes = {name: shape for name, shape in _shapes(7).items() if "norm" not in name}
    files["config.json"] = _config(7, model_type="olmo", clip_qkv=8.0)
    files["model.safetensors"] = _weights(shapes)
    return files


FOLDERS: dict[str, Callable[[], Files]] = {
    "json": _json_folder,
    "bpe": lambda: _sentencepiece_folder("bpe"),
    "unigram": lambda: _sentencepiece_folder("unigram"),
    "other": _other_folder,
}
