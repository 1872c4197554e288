"""Texts of the inspector for tokens, bytes, and numbers that may be missing."""

from __future__ import annotations

import math

from ui.widgets.numbers import UNKNOWN, bits, probability, signed
from ui.widgets.visible import visible


def token(data: bytes, most: int = 40) -> str:
    """A token as text of its own: leading spaces as ␣, line ends and controls visible, undecodable bytes in hex."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return hexadecimal(data, most // 3)
    bare = text.lstrip(" ")
    shown = "␣" * (len(text) - len(bare)) + visible(bare.replace("\n", "↵").replace("\t", "⇥")).text
    return shown if len(shown) <= most else shown[:most] + "…"


def hexadecimal(data: bytes, most: int = 4) -> str:
    """Bytes in hex: "20 4c 69 73 …"."""
    return data[:most].hex(" ") + (" …" if len(data) > most else "")


def likely(logprob: float | None) -> str:
    """A log-probability as a probability."""
    return UNKNOWN if logprob is None or math.isnan(logprob) else probability(math.exp(logprob))


def in_nats(value: float | None) -> str:
    """A token's log-probability: "−2.323 nats"."""
    return UNKNOWN if value is None else f"{signed(value, 3)} nats"


def in_bits(value_nats: float | None) -> str:
    """Nats as bits: "3.35 bits"."""
    return UNKNOWN if value_nats is None else bits(value_nats)


def percent(share: float | None) -> str:
    """A share: "97.8 %"."""
    return UNKNOWN if share is None else f"{100 * share:.1f} %"


def share(value: float) -> str:
    """A number between 0 and 1 with three places: ".783"."""
    return f"{value:.3f}".removeprefix("0")
