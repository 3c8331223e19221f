"""Getter: values of a config.json or of GGUF metadata, checked, and named where they are wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import BadFileError, UnsupportedModelError, shown
from engine.model.families import WAY_OUT


class Getter:
    """Reads values and says which one is missing or impossible."""

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._values = values
        self._where = where
        self._prefix = prefix

    def whole(self, key: str, default: int | None = None, low: int = 1) -> int:
        value = self._value(key, default)
        if isinstance(value, list) and value:  # some GGUFs give a number per layer
            if any(item != value[0] for item in value):
                raise UnsupportedModelError(
                    f"{self._where} has layers of different shapes ({key}): {WAY_OUT}"
                )
            value = value[0]
        if type(value) is not int or not low <= value < 1 << 31:
            raise self.bad(key, value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        # The bound also keeps out infinity, and whole numbers too long for a float.
        if type(value) not in (int, float) or not 0 < value < 1e30:
            raise self.bad(key, value)
        return float(value)

    def optional(self, key: str, default: float) -> float:
        """A number where null means off; 0 = off."""
        if self.has(key) and self._values[self._prefix + key] is None:
            return 0.0
        return self.number(key, default) if self.has(key) or default else 0.0

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.bad(key, value)
        return value

    def text(self, key: str, default: str) -> str:
        value = self._value(key, default)
        if not isinstance(value, str) or not value:
            raise self.bad(key, value)
        return value

    def has(self, key: str) -> bool:
        return self._prefix + key in self._values

    def numbers(self, key: str) -> list[int]:
        """A list of whole numbers; left out means empty."""
        value = self._values.get(self._prefix + key)
        if value is None:
            return []
        if not isinstance(value, list) or any(type(item) is not int for item in value):
            raise self.bad(key, value)
        return value

    def per_layer(self, key: str, num_layers: int) -> list[Any] | None:
        """A list with an item for each layer, or None where it is left out or empty."""
        value = self._values.get(self._prefix + key)
        if value is None or value == []:
            return None
        if not isinstance(value, list) or len(value) != num_layers:
            raise self.bad(key, value)
        return value

    def bad(self, key: str, value: object) -> BadFileError:
        return BadFileError(
            f"{self._where} gives {key} as {shown(value)}, which cannot be: fetch the model again"
        )

    def _value(self, key: str, default: Any) -> Any:
        value = self._values.get(self._prefix + key)
        if value is None:
            value = default
        if value is None:
            raise BadFileError(f"{self._where} does not say {key}: fetch the model again")
        return value
