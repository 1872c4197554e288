"""The conversation, as text and as tokens."""

from ui.transcript.measure import SCALES, Measure, Mode
from ui.transcript.overlay.strip import EntropyStrip
from ui.transcript.view import TranscriptView

__all__ = ["SCALES", "EntropyStrip", "Measure", "Mode", "TranscriptView"]
