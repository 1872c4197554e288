"""On a screen with two device pixels per pixel everything is drawn at full resolution, not enlarged from a smaller picture."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QImage

from tests.ui.dense import PARTS


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Pictures by device pixels per pixel, drawn in separate processes that no other test has set up."""
    return {scale: _drawn(tmp_path_factory.mktemp(f"x{scale}"), scale) for scale in (1, 2)}


def _drawn(folder: Path, scale: int) -> Path:
    environment = {**os.environ, "QT_SCALE_FACTOR": str(scale), "QT_QPA_PLATFORM": "offscreen"}
    subprocess.run([sys.executable, "-m", "tests.ui.dense", str(folder)], env=environment, check=True, capture_output=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_drawn_at_full_resolution(part: str, drawn: dict[int, Path]) -> None:
    # given the same part at one device pixel per pixel and at two
    plain, fine = (QImage(str(drawn[scale] / f"{part}.png")) for scale in (1, 2))
    # then there are twice as many pixels each way
    assert fine.size() == plain.size() * 2
    # and they have more detail than the plain picture enlarged, smoothly or not
    smooth = Qt.TransformationMode.SmoothTransformation
    enlarged = [plain.scaled(fine.size(), mode=mode) for mode in (smooth, Qt.TransformationMode.FastTransformation)]
    assert detail(fine) > 1.2 * max(map(detail, enlarged))


def detail(picture: QImage) -> float:
    """The detail that a picture loses when it is halved and enlarged again, as a share of all its detail."""
    grey = picture.convertToFormat(QImage.Format.Format_Grayscale8)
    smooth = Qt.TransformationMode.SmoothTransformation
    back = grey.scaled(grey.size() / 2, mode=smooth).scaled(grey.size(), mode=smooth)
    back = back.convertToFormat(QImage.Format.Format_Grayscale8)
    return sum(abs(a - b) for a, b in zip(levels(grey), levels(back), strict=True)) / (grey.width() * grey.height())


def levels(picture: QImage) -> bytes:
    """Brightnesses, row by row."""
    held, wide = bytes(picture.constBits()), picture.bytesPerLine()
    return b"".join(held[y * wide : y * wide + picture.width()] for y in range(picture.height()))
