"""Reference cycles are looked for in the window's thread and between two events, never elsewhere.

Python may collect in any thread and in the middle of any call. Where a widget is part of what it finds, Qt's half of it is
destroyed there and then: by a thread that may not touch it, or under the painter that is just painting it. Both end the
process. (The way out is an old one among users of PyQt: Kovid Goyal, on its mailing list, 2011.)
"""

from __future__ import annotations

import gc

from PySide6.QtCore import QObject, QTimer

LOOK_MS = 50
THRESHOLDS = (4_000, 20, 250)  # as of `gc.set_threshold`: some 2 ms for a look at so many, and full passes are seldom


class Collector(QObject):
    """Takes the place of Python's own collecting from its making to `stop`; for the thread that makes it.

    Args:
        parent: It ends with it.
        thresholds: Objects made since the last look for a look at the youngest, such looks for one at the middle ones, and
            those for one at all.
    """

    def __init__(self, parent: QObject | None = None, thresholds: tuple[int, int, int] = THRESHOLDS) -> None:
        super().__init__(parent)
        self._thresholds = thresholds
        self._before = gc.isenabled()
        gc.disable()
        self._timer = QTimer(self)
        self._timer.timeout.connect(self.look)
        self._timer.start(LOOK_MS)

    def look(self) -> None:
        """Collects the oldest generation that is due, and with it all younger ones."""
        counts = gc.get_count()
        due = [generation for generation in range(3) if counts[generation] > self._thresholds[generation]]
        if due:
            gc.collect(due[-1])

    def stop(self) -> None:
        """Python collects again as it did before."""
        self._timer.stop()
        if self._before:
            gc.enable()
