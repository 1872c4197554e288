"""Formulas of Read mode as pictures: TeX to MathML by latex2mathml, to SVG by ziamath, in a thread beside the window.

The thread sleeps after each millisecond of work, so that the window never waits for Python. It gives up a formula after a
fixed number of calls, as the time for short TeX can double with each pair of braces. Such a formula, or one that the
libraries do not know, stays source. The libraries neither read files that TeX names nor use the network.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
import unicodedata
from collections import OrderedDict, deque
from types import FrameType
from xml.etree import ElementTree

from msgspec import Struct
from PySide6.QtCore import QObject, QTimer, Signal

from ui.transcript.read_mode.markup import MOST

logger = logging.getLogger(__name__)

EM_PX = 20.0  # text size of the pictures
MOST_CALLS = 1_000_000  # of Python, for one formula; the longest in the tests' samples takes 220,000
LONGEST = MOST + 100  # characters, with delimiters
MOST_BRACES = 24  # depth of nesting
LARGEST_EM = 200.0  # width and height of a picture
_KEPT = 2000
_MOST_WAITING = 400  # the newest requests, which are the visible formulas
_CALLS_A_MILLISECOND = 2000
_REST_SECONDS = 0.001
_LOOK_MS = 40
_COLOUR = "currentColor"
_REFUSED = ("\\", "href", "url(")  # in MathML: unknown commands, which it contains unchanged, and addresses
_TABLES = ("align", "aligned", "array", "bmatrix", "Bmatrix", "cases", "matrix", "pmatrix", "smallmatrix", "split", "vmatrix")
_ENVIRONMENTS = {name + star for name in (*_TABLES, "Vmatrix", "equation", "gather") for star in ("", "*")}
_ENVIRONMENT = re.compile(r"\\begin\{([^{}]*)\}")
_FENCES = (("$$", "$$", True), ("\\[", "\\]", True), ("\\(", "\\)", False), ("$", "$", False))
_one_at_a_time = threading.Lock()  # the libraries keep fonts and sizes in module globals


class _GivenUpError(Exception):
    """A formula exceeded `MOST_CALLS`."""


class Formula(Struct, frozen=True):
    """A picture of a formula; lengths in ems."""

    svg: str
    width: float
    ascent: float
    descent: float

    def coloured(self, colour: str) -> bytes:
        return self.svg.replace(_COLOUR, colour).encode()


def is_display(source: str) -> bool:
    """Whether a formula, given with its delimiters, has a line of its own."""
    return source.startswith(("$$", "\\[", "\\begin"))


class Formulas(QObject):
    """Pictures by source, with delimiters; made on request, the latest request first."""

    made = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._known: OrderedDict[str, Formula | None] = OrderedDict()
        self._waiting: deque[str] = deque(maxlen=_MOST_WAITING)
        self._done: deque[tuple[str, Formula | None]] = deque()
        self._thread: threading.Thread | None = None
        self._look = QTimer(self, interval=_LOOK_MS)  # the thread, which may outlive the window, refers to nothing of Qt
        self._look.timeout.connect(self._take)

    @property
    def is_idle(self) -> bool:
        """Whether no request is pending."""
        return not self._look.isActive()

    def get(self, source: str) -> Formula | None:
        """The picture; None if there is none, or not yet."""
        return self._known.get(source)

    def ask(self, source: str) -> None:
        """Requests a picture, unless it was requested before or the source is too long; `made` follows."""
        if len(source) > LONGEST:
            return
        if source in self._known:
            self._known.move_to_end(source)
            return
        if source not in self._waiting:
            self._waiting.append(source)
        if not self._look.isActive():
            self._look.start()
        self._begin()

    def _begin(self) -> None:
        if self._waiting and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=_work, args=(self._waiting, self._done), name="formulas", daemon=True)
            self._thread.start()

    def _take(self) -> None:
        found = bool(self._done)
        while self._done:
            source, formula = self._done.popleft()
            self._known[source] = formula
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
        if self._waiting:
            self._begin()
        elif (self._thread is None or not self._thread.is_alive()) and not self._done:
            self._look.stop()
        if found:
            self.made.emit()


def _work(waiting: deque[str], done: deque[tuple[str, Formula | None]]) -> None:
    while True:
        try:
            source = waiting.pop()
        except IndexError:
            return
        with _one_at_a_time:
            done.append((source, _made(source)))


def _made(source: str) -> Formula | None:
    tex, display = _opened(source)
    if _deepest(tex) > MOST_BRACES or any(name not in _ENVIRONMENTS for name in _ENVIRONMENT.findall(tex)):
        return None
    calls, limit = 0, sys.maxsize

    def count(_frame: FrameType, _event: str, _argument: object) -> None:
        nonlocal calls
        calls += 1
        if calls > limit:
            raise _GivenUpError
        if not calls % _CALLS_A_MILLISECOND:
            time.sleep(_REST_SECONDS)

    sys.setprofile(count)  # for this thread only
    try:
        import ziamath.zmath  # noqa: F401  # not counted: the import takes as many calls as many formulas
        from ziamath.tex import tex2mml

        calls, limit = 0, MOST_CALLS
        return _drawn(tex2mml(tex, inline=not display))
    except Exception as problem:  # noqa: BLE001  # any error of a library about a generated text: it stays source
        logger.debug("a formula stays source: %r", problem)
        return None
    finally:
        sys.setprofile(None)


def _drawn(mathml: str) -> Formula | None:
    from ziamath.config import config
    from ziamath.zmath import Math

    if any(part in mathml for part in _REFUSED):
        return None
    config.svg2 = False  # paths alone, as Qt draws them
    root = ElementTree.fromstring(mathml)
    root.set("mathcolor", _COLOUR)
    drawing = Math(root, size=EM_PX)
    text = "".join(root.itertext())
    if any(unicodedata.category(letter)[0] not in "CZ" and not drawing.font.glyphindex(letter) for letter in text):
        return None
    svg = drawing.svgxml()
    _, top, width, height = (float(number) / EM_PX for number in svg.get("viewBox", "").split())
    if not (0 < width < LARGEST_EM and 0 < height < LARGEST_EM):
        return None
    return Formula(ElementTree.tostring(svg, encoding="unicode"), width, max(-top, 0.0), max(height + top, 0.0))


def _opened(source: str) -> tuple[str, bool]:
    """The TeX between a formula's delimiters, and whether it is a display."""
    for opening, closing, display in _FENCES:
        if source.startswith(opening) and source.endswith(closing) and len(source) >= len(opening) + len(closing):
            return source[len(opening) : -len(closing)].strip(), display
    return source, True


def _deepest(tex: str) -> int:
    deepest = depth = 0
    for found in re.finditer(r"\\(?:left|right|begin|end)(?![a-zA-Z])|\\.|[{}]", tex, re.DOTALL):
        if found.group() in ("{", "\\left", "\\begin"):
            depth += 1
            deepest = max(deepest, depth)
        elif found.group() in ("}", "\\right", "\\end"):
            depth -= 1
    return deepest
