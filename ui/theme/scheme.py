"""Dark and light: follows the system unless told otherwise, and tells the widgets that paint themselves."""

from __future__ import annotations

from enum import StrEnum

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtWidgets import QApplication

from ui.theme.fonts import interface_font, register_fonts
from ui.theme.palette import DARK, LIGHT, Palette
from ui.theme.style import qt_palette, style_sheet


class Scheme(StrEnum):
    """Which colours to use."""

    SYSTEM = "system"
    LIGHT = "light"
    DARK = "dark"


class Theme(QObject):
    """The look of one QApplication, whose child it is. Get it with `apply_theme` or `current_theme`."""

    changed = Signal(object)  # the new Palette
    scaled = Signal()  # text has another size: fonts that are made from now on have it

    def __init__(self, app: QApplication, scheme: Scheme) -> None:
        super().__init__(app)
        self._app = app
        self._scheme = scheme
        self.palette = self._wanted()
        register_fonts()
        app.setStyle("Fusion")  # the one style that draws the same everywhere
        app.setFont(interface_font())
        self._dress()
        app.styleHints().colorSchemeChanged.connect(self._follow)

    def use(self, scheme: Scheme) -> None:
        """Takes another scheme from now on."""
        self._scheme = scheme
        self._follow()

    def _wanted(self) -> Palette:
        if self._scheme is Scheme.SYSTEM:
            return DARK if self._app.styleHints().colorScheme() is Qt.ColorScheme.Dark else LIGHT
        return DARK if self._scheme is Scheme.DARK else LIGHT

    def _follow(self) -> None:
        wanted = self._wanted()
        if wanted is not self.palette:
            self.palette = wanted
            self._dress()
            self.changed.emit(wanted)

    def _dress(self) -> None:
        self._app.setPalette(qt_palette(self.palette))
        self._app.setStyleSheet(style_sheet(self.palette))


def apply_theme(app: QApplication, scheme: Scheme = Scheme.SYSTEM) -> Theme:
    """Gives the app its fonts, style and colours; called again, it changes the scheme."""
    theme = app.findChild(Theme)
    if theme is None:
        return Theme(app, scheme)
    theme.use(scheme)
    return theme


def current_theme() -> Theme:
    """The theme of the running app; system colours where none was applied yet."""
    app = QApplication.instance()
    assert isinstance(app, QApplication), "a QApplication must exist before widgets do"
    return app.findChild(Theme) or apply_theme(app)
