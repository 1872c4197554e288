"""On a screen of two device pixels per pixel everything is drawn with all of them: nothing is a small picture enlarged."""

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
    """Pictures, by how many device pixels a pixel has: of processes of their own, which no other test has set up."""
    return {scale: _drawn(tmp_path_factory.mktemp(f"x{scale}"), scale) for scale in (1, 2)}


def _drawn(folder: Path, scale: int) -> Path:
    environment = {**os.environ, "QT_SCALE_FACTOR": str(scale), "QT_QPA_PLATFORM": "offscreen"}
    subprocess.run([sys.executable, "-m", "tests.ui.dense", str(folder)], env=environment, check=True, capture_output=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_it_is_drawn_at_full_resolution(part: str, drawn: dict[int, Path]) -> None:
    # given the same at one device pixel per pixel and at two
    plain, fine = (QImage(str(drawn[scale] / f"{part}.png")) for scale in (1, 2))
    # then there are twice as many pixels each way
    assert fine.size() == plain.size() * 2
    # and there is more in them than in the plain one enlarged, smoothly or not
    smooth = Qt.TransformationMode.SmoothTransformation
    enlarged = [plain.scaled(fine.size(), mode=mode) for mode in (smooth, Qt.TransformationMode.FastTransformation)]
    assert detail(fine) > 1.2 * max(map(detail, enlarged))


def detail(picture: QImage) -> float:
    """How much of a picture is lost when it is halved and enlarged again, as a share of what it has."""
    grey = picture.convertToFormat(QImage.Format.Format_Grayscale8)
    smooth = Qt.TransformationMode.SmoothTransformation
    back = grey.scaled(grey.size() / 2, mode=smooth).scaled(grey.size(), mode=smooth)
    back = back.convertToFormat(QImage.Format.Format_Grayscale8)
    return sum(abs(a - b) for a, b in zip(levels(grey), levels(back), strict=True)) / (grey.width() * grey.height())


def levels(picture: QImage) -> bytes:
    """Brightnesses, row by row."""
    held, wide = bytes(picture.constBits()), picture.bytesPerLine()
    return b"".join(held[y * wide : y * wide + picture.width()] for y in range(picture.height()))
