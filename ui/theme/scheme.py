"""The theme: colour scheme, contrast and motion, which follow the system unless the settings choose."""

from __future__ import annotations

import ctypes
import ctypes.util
import sys

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtWidgets import QApplication, QStyle

from ui.port import Contrast, Motion, OwnColours, Scheme
from ui.theme.fonts import interface_font, register_fonts
from ui.theme.palette import DARK, HIGH_DARK, HIGH_LIGHT, LIGHT, Palette
from ui.theme.style import qt_palette, style_sheet

HALF = 0.49  # the most that leaves text a contrast of 7 : 1 in high contrast
STRENGTHS = {OwnColours.HALF: HALF, OwnColours.FULL: 1.0, OwnColours.NONE: 0.0}


class Theme(QObject):
    """The look of one QApplication, whose child it is. Get it with `apply_theme` or `current_theme`."""

    changed = Signal(object)  # Palette
    developer_changed = Signal(bool)
    scaled = Signal()  # the text size has changed; new fonts have it

    def __init__(self, app: QApplication, scheme: Scheme) -> None:
        super().__init__(app)
        self._app = app
        self._scheme, self._contrast, self.motion = scheme, Contrast.SYSTEM, Motion.SYSTEM
        self._hints = app.styleHints()  # held, for PySide releases it and its parts together
        self.palette = self._wanted()
        self.own_colours = OwnColours.HALF
        self.developer = False  # shows the developer view
        register_fonts()
        app.setStyle("Fusion")  # looks the same on every system
        app.setFont(interface_font())
        app.setLayoutDirection(Qt.LayoutDirection.LeftToRight)  # for English; users' texts have their own direction
        self._dress()
        self._hints.colorSchemeChanged.connect(self._follow)
        self._hints.accessibility().contrastPreferenceChanged.connect(self._follow)

    def use(self, scheme: Scheme, contrast: Contrast | None = None, motion: Motion | None = None) -> None:
        """Changes the scheme, and contrast and motion if given."""
        self._scheme, self._contrast = scheme, contrast or self._contrast
        self.motion = motion or self.motion
        self._follow()

    def show(self, own_colours: OwnColours, *, developer: bool) -> None:
        """Sets the strength of colours in the user's own text, and the developer view."""
        if own_colours is not self.own_colours:
            self.own_colours = own_colours
            self.changed.emit(self.palette)
        if developer != self.developer:
            self.developer = developer
            self.developer_changed.emit(developer)

    @property
    def own_strength(self) -> float:
        """The strength of colours in the user's own text, 0 to 1."""
        return STRENGTHS[self.own_colours]

    @property
    def fade_ms(self) -> int:
        """The duration of fades in ms; 0 with reduced motion."""
        return 0 if self.motion is Motion.REDUCED or system_reduces() else FADE_MS

    def _wanted(self) -> Palette:
        dark = self._scheme is Scheme.DARK
        if self._scheme is Scheme.SYSTEM:
            dark = self._hints.colorScheme() is Qt.ColorScheme.Dark
        high = self._contrast is Contrast.HIGH
        if self._contrast is Contrast.SYSTEM:
            high = self._hints.accessibility().contrastPreference() is Qt.ContrastPreference.HighContrast
        return (HIGH_DARK if dark else HIGH_LIGHT) if high else DARK if dark else LIGHT

    def _follow(self) -> None:
        wanted = self._wanted()
        if wanted is not self.palette:
            self.palette = wanted
            self._dress()
            self.changed.emit(wanted)

    def _dress(self) -> None:
        self._app.setPalette(qt_palette(self.palette))
        self._app.setStyleSheet(style_sheet(self.palette))


def apply_theme(
    app: QApplication, scheme: Scheme = Scheme.SYSTEM, contrast: Contrast | None = None, motion: Motion | None = None
) -> Theme:
    """Gives the app its fonts, style and colours; a later call changes the scheme, and contrast and motion if given."""
    theme = app.findChild(Theme) or Theme(app, scheme)
    theme.use(scheme, contrast, motion)
    return theme


def current_theme() -> Theme:
    """The theme of the running app; applies that of the system if there is none yet."""
    app = QApplication.instance()
    assert isinstance(app, QApplication), "a QApplication must exist before widgets do"
    return app.findChild(Theme) or apply_theme(app)


FADE_MS = 120


def system_reduces() -> bool:
    """Whether the system asks for reduced motion: by macOS's accessibility settings, else by the animations of Qt's style."""
    if sys.platform == "darwin":
        return _macos_reduces()
    style = QApplication.style()
    return style.styleHint(QStyle.StyleHint.SH_Widget_Animation_Duration) <= 0


def _macos_reduces() -> bool:
    """`NSWorkspace.sharedWorkspace.accessibilityDisplayShouldReduceMotion`, which Qt does not expose."""
    try:
        objc = ctypes.CDLL(ctypes.util.find_library("objc"))
        objc.objc_getClass.restype = objc.sel_registerName.restype = ctypes.c_void_p
        found = ctypes.c_void_p(objc.objc_getClass(b"NSWorkspace"))
        for name, restype in (
            (b"sharedWorkspace", ctypes.c_void_p),
            (b"accessibilityDisplayShouldReduceMotion", ctypes.c_bool),
        ):
            send = ctypes.CFUNCTYPE(restype, ctypes.c_void_p, ctypes.c_void_p)(("objc_msgSend", objc))
            found = send(found, ctypes.c_void_p(objc.sel_registerName(name)))
    except (OSError, AttributeError, TypeError):
        return False
    return bool(found)
