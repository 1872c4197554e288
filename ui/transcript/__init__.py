"""The conversation, as text and as tokens."""

from ui.transcript.measure import SCALES, Measure, Mode
from ui.transcript.view import TranscriptView

__all__ = ["SCALES", "Measure", "Mode", "TranscriptView"]
