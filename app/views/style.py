"""TesseraStyle: Fusion with our metrics and focus ring; the style sheet comes on top of it."""

from __future__ import annotations

from PySide6.QtCore import QObject, QRectF, Qt, Slot
from PySide6.QtGui import QGuiApplication, QIcon, QPainter, QPen
from PySide6.QtWidgets import (
    QAbstractButton,
    QApplication,
    QFocusFrame,
    QProxyStyle,
    QSlider,
    QStyle,
    QStyleHintReturn,
    QStyleOption,
    QWidget,
)

from app.render.icons import icon
from app.render.resources import tokens
from app.render.theme import theme

MENU_ICON_AT = 10  # px from a menu's edge, as the style sheet has it
_STANDARD = QStyle.StandardPixmap
STANDARD_ICONS = {
    _STANDARD.SP_FileDialogBack: "chevron-left",
    _STANDARD.SP_ArrowBack: "chevron-left",
    _STANDARD.SP_ArrowForward: "chevron-right",
    _STANDARD.SP_FileDialogToParent: "chevron-up",
    _STANDARD.SP_FileDialogNewFolder: "plus",
    _STANDARD.SP_FileDialogListView: "grid-2x2",
    _STANDARD.SP_FileDialogDetailedView: "list-filter",
    _STANDARD.SP_DirIcon: "folder",
    _STANDARD.SP_DirClosedIcon: "folder",
}


class TesseraStyle(QProxyStyle):
    """What a style sheet cannot say: a focus ring with a gap, and sizes from the tokens."""

    def __init__(self) -> None:
        super().__init__("Fusion")
        sizes, pixel = tokens()["size"], QStyle.PixelMetric
        around = int(sizes["focus_ring"] + sizes["focus_gap"])
        self._metrics = {
            pixel.PM_FocusFrameHMargin: around,
            pixel.PM_FocusFrameVMargin: around,
            pixel.PM_SmallIconSize: int(sizes["icon"]),
            pixel.PM_ButtonIconSize: int(sizes["icon"]),
            pixel.PM_DockWidgetSeparatorExtent: int(sizes["hairline"]),
            pixel.PM_SplitterWidth: int(sizes["hairline"]),
        }

    def pixelMetric(
        self,
        metric: QStyle.PixelMetric,
        option: QStyleOption | None = None,
        widget: QWidget | None = None,
    ) -> int:
        own = self._metrics.get(metric)
        return super().pixelMetric(metric, option, widget) if own is None else own

    def styleHint(
        self,
        hint: QStyle.StyleHint,
        option: QStyleOption | None = None,
        widget: QWidget | None = None,
        returned: QStyleHintReturn | None = None,
    ) -> int:
        if hint in (
            QStyle.StyleHint.SH_EtchDisabledText,
            QStyle.StyleHint.SH_DialogButtonBox_ButtonsHaveIcons,
        ):
            return 0
        if hint == QStyle.StyleHint.SH_FocusFrame_AboveWidget:
            return 1  # below it the background of the parent would cover the ring
        return super().styleHint(hint, option, widget, returned)

    def standardIcon(
        self,
        which: QStyle.StandardPixmap,
        option: QStyleOption | None = None,
        widget: QWidget | None = None,
    ) -> QIcon:
        """Our icons in Qt's own dialogs, which show where the desktop has none."""
        name = STANDARD_ICONS.get(which)
        return icon(name) if name else super().standardIcon(which, option, widget)

    def drawControl(
        self,
        element: QStyle.ControlElement,
        option: QStyleOption,
        painter: QPainter,
        widget: QWidget | None = None,
    ) -> None:
        if element == QStyle.ControlElement.CE_FocusFrame:
            self._draw_ring(option, painter)
        else:
            super().drawControl(element, option, painter, widget)

    def drawPrimitive(
        self,
        element: QStyle.PrimitiveElement,
        option: QStyleOption,
        painter: QPainter,
        widget: QWidget | None = None,
    ) -> None:
        # Lists draw their ring inside the row, buttons have the frame: no dotted rectangles.
        if element == QStyle.PrimitiveElement.PE_FrameFocusRect:
            return
        if element == QStyle.PrimitiveElement.PE_IndicatorMenuCheckMark:
            self._draw_check(option, painter, widget)
        else:
            super().drawPrimitive(element, option, painter, widget)

    def _draw_check(self, option: QStyleOption, painter: QPainter, widget: QWidget | None) -> None:
        """The mark of a menu's entry, in line with the icons of the other entries."""
        if option.state & QStyle.StateFlag.State_On:
            entries = widget.actions() if widget is not None else []
            has_icons = any(not entry.icon().isNull() for entry in entries)
            left = MENU_ICON_AT if has_icons else option.rect.left()
            place = option.rect.translated(left - option.rect.left(), 0)
            icon("check", "text.primary").paint(painter, place.adjusted(-1, -1, 1, 1))

    def _draw_ring(self, option: QStyleOption, painter: QPainter) -> None:
        now = theme()
        ring, gap = now.size("focus_ring"), now.size("focus_gap")
        rect = QRectF(option.rect).adjusted(ring / 2, ring / 2, -ring / 2, -ring / 2)
        radius = now.size("radius.control") + gap + ring / 2
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(now.color("accent.focus"), ring))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRoundedRect(rect, radius, radius)
        painter.restore()


class FocusRing(QObject):
    """Moves one QFocusFrame to the button that the keyboard reached."""

    def __init__(self, app: QApplication) -> None:
        super().__init__(app)
        self._frame: QFocusFrame | None = None
        app.focusChanged.connect(self._on_focus)

    @property
    def target(self) -> QWidget | None:
        """The widget that carries the ring."""
        return self._frame.widget() if self._frame is not None else None

    @Slot(QWidget, QWidget)
    def _on_focus(self, old: QWidget | None, new: QWidget | None) -> None:
        # A pressed button of the mouse: focus came by a click, and who clicks sees the pointer.
        by_mouse = QGuiApplication.mouseButtons() != Qt.MouseButton.NoButton
        wants_ring = isinstance(new, (QAbstractButton, QSlider)) and not by_mouse
        if self._frame is not None:
            self._frame.deleteLater()  # it lives inside the window of its widget
            self._frame = None
        if wants_ring and new is not None:
            self._frame = QFocusFrame(new)
            self._frame.setWidget(new)


def install_style(app: QApplication) -> FocusRing:
    """Put the style under the application's style sheet, and the ring on its buttons."""
    app.setStyle(TesseraStyle())
    return FocusRing(app)
