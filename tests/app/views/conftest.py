"""The style and the theme of the application: without them sizes and colours are Qt's own."""

from __future__ import annotations

import pytest
from PySide6.QtWidgets import QApplication

from app.render.theme import ThemeManager
from app.views.style import install_style


@pytest.fixture(scope="session", autouse=True)
def look(qapp: QApplication) -> ThemeManager:
    """As `app.main` sets them, light."""
    install_style(qapp)
    manager = ThemeManager()
    manager.set_choice("light")
    return manager
