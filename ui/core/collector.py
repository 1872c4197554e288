"""Runs the garbage collector in the window's thread and between two events only.

Python may collect in any thread and in the middle of any call. If a widget belongs to a collected cycle, its Qt object is
destroyed at that moment: by a thread that may not touch it, or during a paint event of its own. Both end the process.
(An old remedy among users of PyQt: Kovid Goyal, on its mailing list, 2011.)
"""

from __future__ import annotations

import gc

from PySide6.QtCore import QObject, QTimer

LOOK_MS = 50
THRESHOLDS = (4_000, 20, 250)  # as of `gc.set_threshold`: the youngest generation takes some 2 ms, full collections are rare


class Collector(QObject):
    """Replaces Python's automatic collection until `stop`, in the thread that constructs it.

    Args:
        thresholds: One for each generation, as of `gc.set_threshold`.
    """

    def __init__(self, thresholds: tuple[int, int, int] = THRESHOLDS) -> None:
        super().__init__()
        self._thresholds = thresholds
        self._was_enabled = gc.isenabled()
        gc.disable()
        self._timer = QTimer(self)
        self._timer.timeout.connect(self.look)
        self._timer.start(LOOK_MS)

    def look(self) -> None:
        """Collects the oldest generation over its threshold, and with it all younger ones."""
        counts = gc.get_count()
        due = [generation for generation in range(3) if counts[generation] > self._thresholds[generation]]
        if due:
            gc.collect(due[-1])

    def stop(self) -> None:
        """Restores Python's automatic collection, if it was on."""
        self._timer.stop()
        if self._was_enabled:
            gc.enable()
