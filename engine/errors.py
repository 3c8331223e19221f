"""Every error that Tessera raises on purpose. `str(error)` is one sentence for a person.

TesseraError
├── ConfigError            a setting is out of range
├── ModelError             a model cannot be loaded
│   ├── BadFileError       the file is damaged, cut short, hostile, or not a model at all
│   ├── MissingWeightsError  tensors or shards are missing, extra, or have the wrong shape
│   └── UnsupportedModelError  an architecture, tensor type or tokenizer we cannot run
├── RequestError           one request is refused; the others go on
│   ├── PromptTooLongError  prompt longer than the context or the whole pool
│   ├── EmptyPromptError
│   ├── TemplateError      the chat template refused the messages
│   └── SamplingError      sampling parameters out of range, or logits that are not numbers
├── EngineStoppedError     the engine thread has ended; carries the reason
└── DownloadError          the starter model could not be fetched
"""

from __future__ import annotations

import reprlib


class TesseraError(Exception):
    """Root of the tree."""

    def __str__(self) -> str:
        sentence = super().__str__()
        return sentence if not sentence or sentence[-1] in ".!?" else f"{sentence}."


class ConfigError(TesseraError):
    pass


class ModelError(TesseraError):
    pass


class BadFileError(ModelError):
    pass


class MissingWeightsError(ModelError):
    pass


class UnsupportedModelError(ModelError):
    pass


class RequestError(TesseraError):
    pass


class PromptTooLongError(RequestError):
    pass


class EmptyPromptError(RequestError):
    pass


class TemplateError(RequestError):
    pass


class SamplingError(RequestError):
    pass


class EngineStoppedError(TesseraError):
    pass


class DownloadError(TesseraError):
    pass


def shown(value: object, most: int = 60) -> str:
    """A value out of somebody's file, fit for a sentence: short, one line, printable."""
    text = value if isinstance(value, str) and value else reprlib.repr(value)
    text = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
