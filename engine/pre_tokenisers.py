"""How byte-level vocabularies cut text into words before merging. Owns the table of GGUF kinds.

A kind names the rule with which a vocabulary's merges were learned; with another rule the same
text gives other tokens and the answers get quietly worse, so an unknown kind is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

from engine.errors import UnsupportedModelError, shown

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"


def _words(digits: str) -> str:
    """Letters with one leading mark, runs of digits, punctuation, line ends, spaces."""
    symbols = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
    return rf"{_CONTRACTION}|{_LEAD}\p{{L}}+|{digits}|{symbols}|{_TAIL}"


def _cased_words(digits: str, suffix: str = "") -> str:
    """As `_words`, with a cut before a capital that follows small letters."""
    symbols = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
    first = rf"{_LEAD}{_UPPER}*{_LOWER}+{suffix}"
    second = rf"{_LEAD}{_UPPER}+{_LOWER}*{suffix}"
    return rf"{first}|{second}|{digits}|{symbols}|{_TAIL}"


_QWEN35 = (
    rf"{_CONTRACTION}|{_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One way to cut. `pattern` "" means the rule of GPT-2, which the byte-level step has."""

    pattern: str = ""
    single_digits: bool = False  # every digit alone, before anything else
    whole_words_first: bool = False  # a word that is a token is taken without merging
    adds_bos: bool = False  # unless the file says otherwise
    composes: bool = False  # letters and their marks become one sign before all else (NFC)

    def build(self) -> PreTokenizer:
        if self.pattern:
            split = Split(Regex(self.pattern), behavior="isolated")
            return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
        byte_level = ByteLevel(add_prefix_space=False, use_regex=True)
        return Sequence([Digits(True), byte_level]) if self.single_digits else byte_level


_GPT2 = Rule()
_DIGITS = Rule(single_digits=True)
_LLAMA3 = Rule(_words(r"\p{N}{1,3}"), whole_words_first=True, adds_bos=True)
_WORDS_OF_3_DIGITS = Rule(_words(r"\p{N}{1,3}"))
_QWEN2 = Rule(_words(r"\p{N}"))
_TEKKEN = Rule(_cased_words(r"\p{N}"), whole_words_first=True, adds_bos=True)
_GPT4O = Rule(_cased_words(r"\p{N}{1,3}", rf"{_CONTRACTION}?"))

# "smollm" is cut by GPT-2's rule, as transformers does when it reads these files; the authors'
# own rule also isolates digits first, which differs only for two or more spaces before a digit.
_KINDS: dict[str, Rule] = {
    **dict.fromkeys(
        ("default", "gpt-2", "smollm", "phi-2", "olmo", "mpt", "exaone4", "trillion"), _GPT2
    ),
    **dict.fromkeys(("starcoder", "refact", "codeshell"), _DIGITS),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"), _LLAMA3
    ),
    "command-r": Rule(single_digits=True, composes=True),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _WORDS_OF_3_DIGITS),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "hunyuan", "megrez"), _QWEN2),
    "qwen35": Rule(_QWEN35),
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
}


def rule_of(kind: str) -> Rule:
    """The rule of a `tokenizer.ggml.pre` value.

    Raises:
        UnsupportedModelError: this kind is not known; the sentence names it.
    """
    if kind not in _KINDS:
        raise UnsupportedModelError(
            f"This model cuts text by the rule {shown(kind)}, which Tessera does not know yet. "
            "Choose another file or model."
        )
    return _KINDS[kind]
