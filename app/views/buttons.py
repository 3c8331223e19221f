"""Buttons with icons: built alike, and drawn again when the theme changes."""

from __future__ import annotations

from PySide6.QtCore import QSize
from PySide6.QtWidgets import QAbstractButton, QToolButton, QWidget

from app.render.icons import icon


def picture_of(
    button: QAbstractButton, picture: str, px: int = 16, colour: str = "text.secondary"
) -> None:
    """Give a button an icon that `refresh_icons` can draw again."""
    button.setProperty("picture", picture)
    button.setProperty("picture_px", px)
    button.setProperty("picture_colour", colour)
    button.setIconSize(QSize(px, px))
    button.setIcon(icon(picture, colour, px))


def icon_button(picture: str, name: str, parent: QWidget, px: int = 16) -> QToolButton:
    """A flat button with an icon; `name` is its tool tip and what a screen reader says."""
    button = QToolButton(parent)
    button.setProperty("kind", "icon")
    if px < 16:
        button.setProperty("compact", "true")
    picture_of(button, picture, px)
    button.setToolTip(name)
    button.setAccessibleName(name)
    return button


def refresh_icons(parent: QWidget) -> None:
    """Draw the icons of all buttons inside `parent` in the present theme."""
    for button in parent.findChildren(QAbstractButton):
        picture = button.property("picture")
        if picture:
            colour = str(button.property("picture_colour"))
            button.setIcon(icon(str(picture), colour, int(button.property("picture_px"))))


def set_state(widget: QWidget, name: str, value: object) -> None:
    """Set a property that the style sheet looks at, and let it look again."""
    if widget.property(name) != value:
        widget.setProperty(name, value)
        widget.style().unpolish(widget)
        widget.style().polish(widget)
        widget.update()
