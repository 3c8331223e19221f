"""Errors of the application: what history, export and import raise. One sentence each. No Qt."""

from __future__ import annotations

from engine.errors import TesseraError


class HistoryError(TesseraError):
    """A chat could not be written to, or read from, the disk."""


class ExportError(TesseraError):
    """A transcript could not be written."""


class ImportRefusedError(TesseraError):
    """A file is not an export of Tessera, or is damaged."""
