"""Whether anything moves: fades of 120 ms, and none where the system or the settings ask for reduced motion."""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
from enum import StrEnum

from PySide6.QtWidgets import QApplication, QStyle

FADE_MS = 120


class Motion(StrEnum):
    """Whether things fade."""

    SYSTEM = "system"
    REDUCED = "reduced"


def system_reduces() -> bool:
    """What the system asks for: macOS by its accessibility settings, others by the animations of Qt's style."""
    if sys.platform == "darwin":
        return _macos_reduces()
    style = QApplication.style()
    return style.styleHint(QStyle.StyleHint.SH_Widget_Animation_Duration) <= 0


def _macos_reduces() -> bool:
    """`NSWorkspace.sharedWorkspace.accessibilityDisplayShouldReduceMotion`, which Qt does not pass on."""
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
