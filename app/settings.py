"""Settings: what the user chose, kept in an INI file inside the data folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from PySide6.QtCore import QByteArray, QSettings

from app.records import Sampling

ThemeChoice = Literal["system", "light", "dark"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that outlives a run, apart from the chats."""

    theme: ThemeChoice = "system"
    last_model: str = ""  # path that was loaded last
    memory_fraction: float | None = None  # None: the engine's default for the device
    window_state: bytes = b""  # what MainWindow.save_state() gave
    sampling: Sampling = field(default_factory=Sampling)  # of new chats


class SettingsStore:
    """Reads and writes Settings. A value that makes no sense is read as its default."""

    def __init__(self, path: Path) -> None:
        self._file = QSettings(str(path), QSettings.Format.IniFormat)

    def read(self) -> Settings:
        defaults = Settings()
        theme = self._text("theme")
        fraction = self._number("engine/memory_fraction", 0.01, 0.95)
        state = self._file.value("window/state")
        return Settings(
            theme=theme if theme in get_args(ThemeChoice) else defaults.theme,  # type: ignore[arg-type]
            last_model=self._text("engine/last_model"),
            memory_fraction=fraction,
            window_state=bytes(state.data()) if isinstance(state, QByteArray) else b"",
            sampling=self._sampling(),
        )

    def write(self, settings: Settings) -> None:
        values: dict[str, object] = {
            "theme": settings.theme,
            "engine/last_model": settings.last_model,
            "engine/memory_fraction": settings.memory_fraction,
            "window/state": QByteArray(settings.window_state),
            "sampling/temperature": settings.sampling.temperature,
            "sampling/top_k": settings.sampling.top_k,
            "sampling/top_p": settings.sampling.top_p,
            "sampling/min_p": settings.sampling.min_p,
            "sampling/seed": settings.sampling.seed,
            "sampling/max_tokens": settings.sampling.max_tokens,
        }
        for key, value in values.items():
            if value is None:
                self._file.remove(key)
            else:
                self._file.setValue(key, str(value) if isinstance(value, float | int) else value)
        self._file.sync()

    def _sampling(self) -> Sampling:
        d = Sampling()
        temperature = self._number("sampling/temperature", 0.0, 100.0)
        top_k = self._whole("sampling/top_k", 0, 2**31 - 1)
        top_p = self._number("sampling/top_p", 0.0, 1.0)
        min_p = self._number("sampling/min_p", 0.0, 1.0)
        return Sampling(
            temperature=d.temperature if temperature is None else temperature,
            top_k=d.top_k if top_k is None else top_k,
            top_p=d.top_p if top_p is None else top_p,
            min_p=d.min_p if min_p is None else min_p,
            seed=self._whole("sampling/seed", 0, 2**63 - 1),
            max_tokens=self._whole("sampling/max_tokens", 1, 2**31 - 1),
        )

    def _text(self, key: str) -> str:
        value = self._file.value(key)
        # An INI value with commas comes back as a list; a path may well hold commas.
        if isinstance(value, list):
            return ", ".join(str(part) for part in value)
        return value if isinstance(value, str) else ""

    def _number(self, key: str, low: float, high: float) -> float | None:
        try:
            value = float(self._text(key))
        except ValueError:
            return None
        return value if low <= value <= high else None

    def _whole(self, key: str, low: int, high: int) -> int | None:
        try:
            value = int(self._text(key))
        except ValueError:
            return None
        return value if low <= value <= high else None
