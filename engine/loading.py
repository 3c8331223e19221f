"""Loader: one attempt to load a model, which may be told to give up before any tensor."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.errors import TesseraError
from engine.messages import ModelFailed, ModelLoading
from engine.serving import Serving, check_model, open_model

log = logging.getLogger(__name__)

_REPORT_STEP = 0.01  # a model of thousands of tensors is a hundred events


class LoadingStopped(Exception):
    """Raised out of a load when it was cancelled, or when the engine is asked to end."""


class Loader:
    """Opens models for one engine; whatever goes wrong with a file ends as a ModelFailed.

    Args:
        say: hands an event over at once.
        is_ending: True once the engine shall end; a load under way gives up without a word.
        is_cancelled: True while the load under way is cancelled; it gives up with a sentence.
    """

    def __init__(
        self,
        config: EngineConfig,
        say: Callable[[ModelLoading], None],
        is_ending: Callable[[], bool],
        is_cancelled: Callable[[], bool],
    ) -> None:
        self._config = config
        self._say = say
        self._is_ending = is_ending
        self._is_cancelled = is_cancelled

    def refusal(self, path: Path) -> ModelFailed | None:
        """Why this model is not to be loaded: asked before the present one is given up for it."""
        try:
            check_model(path, self._config)
        except Exception as error:  # as in `load`
            if not self._is_cancelled():
                return ModelFailed(str(path), _sentence(path, error), is_kept=True)
        return _cancelled(path, is_kept=True) if self._is_cancelled() else None

    def load(self, path: Path) -> Serving | ModelFailed | None:
        """The model in memory, or why it is not; None when the engine is to end. Nothing that a
        load took is held once it has given up."""
        failed: ModelFailed | None = None
        try:
            progress = self._progress(path)
            progress(0.0, "Opening the file")
            serving = open_model(path, self._config, progress)
            self._check_wanted()
            return serving
        except LoadingStopped:
            if not self._is_ending():
                failed = _cancelled(path)
        except Exception as error:  # a stranger's file: whatever it provokes ends this load only
            failed = ModelFailed(str(path), _sentence(path, error))
        # Only here are the exception, its frames and so the tensors gone.
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # back to the device: the next pool is sized by what is free
        return failed

    def _progress(self, path: Path) -> Callable[[float, str], None]:
        told = (-1.0, "")

        def progress(fraction: float, note: str) -> None:
            nonlocal told
            self._check_wanted()
            if note != told[1] or fraction >= told[0] + _REPORT_STEP:
                told = (fraction, note)
                self._say(ModelLoading(str(path), fraction, note))

        return progress

    def _check_wanted(self) -> None:
        if self._is_ending() or self._is_cancelled():
            raise LoadingStopped


def _cancelled(path: Path, is_kept: bool = False) -> ModelFailed:
    return ModelFailed(
        str(path), f"Loading {path.name} was cancelled.", is_kept=is_kept, is_cancelled=True
    )


def _sentence(path: Path, error: Exception) -> str:
    if isinstance(error, MemoryError):
        return f"There is not enough memory for {path.name}; take a smaller model."
    if isinstance(error, TesseraError | OSError):
        return str(error)
    log.error("loading %s", path, exc_info=error)
    return f"{path.name} cannot be loaded ({type(error).__name__}: {error})."
