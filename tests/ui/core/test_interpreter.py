"""PySide6 must not lose references to None and True: some builds do, and abort after some thousand calls."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import sys
from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QApplication, QWidget

class Sender(QObject):
    sent = Signal(bool)

app = QApplication([])
sender, widget = Sender(), QWidget()
sender.sent.connect(lambda value: None)
before = sys.getrefcount(True), sys.getrefcount(None)
for _ in range(200):
    sender.sent.emit(True)
    widget.update()
after = sys.getrefcount(True), sys.getrefcount(None)
print(before[0] - after[0], before[1] - after[1])
"""


def test_no_references_are_lost() -> None:
    env = {**os.environ, "QT_QPA_PLATFORM": "offscreen"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=120, check=True)
    lost_true, lost_none = (int(number) for number in done.stdout.split())
    assert lost_true < 100
    assert lost_none < 100
