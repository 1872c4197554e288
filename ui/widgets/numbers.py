"""Numbers as text: `.412`, `−2.323`, `3.35 bits`, with a true minus sign and a comma for thousands."""

from __future__ import annotations

import math

MINUS = "\N{MINUS SIGN}"
UNKNOWN = "\N{EN DASH}"
_LN2 = math.log(2)


def probability(p: float) -> str:
    """A probability with three figures and no leading zero: `.412`, `1`, `<.001`, `>.999`."""
    if math.isnan(p):
        return UNKNOWN
    if p >= 1:
        return "1"
    if p <= 0:
        return "0"
    if p < 0.001:
        return "<.001"
    if p > 0.999:
        return ">.999"
    return f"{p:.3f}"[1:]


def signed(value: float, places: int) -> str:
    """A number with a true minus sign: `−2.323`; never a negative zero."""
    if math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return f"{MINUS if value < 0 else ''}\N{INFINITY}"
    text = f"{abs(value):,.{places}f}"
    return f"{MINUS}{text}" if value < 0 and float(text.replace(",", "")) else text


def logprob(nats: float) -> str:
    """A token's log-probability in nats: `−2.323`."""
    return signed(nats, 3)


def nats(value: float) -> str:
    """A joint log-probability: `−23.9 nats`."""
    return f"{signed(value, 1)} nats"


def bits(nats_value: float) -> str:
    """An entropy or a surprisal, from nats to bits: `3.35 bits`."""
    return f"{signed(to_bits(nats_value), 2)} bits"


def to_bits(nats_value: float) -> float:
    """Converts nats to bits."""
    return nats_value / _LN2


def rate(tokens_per_second: float) -> str:
    """A speed: `41 tok/s`, below ten with one place."""
    return f"{tokens_per_second:.1f} tok/s" if tokens_per_second < 10 else f"{tokens_per_second:,.0f} tok/s"


def count(n: int) -> str:
    """A whole number with thousands separated: `8,192`."""
    return f"{n:,}"


def size(count: float) -> str:
    """Bytes: "14 MB", "1.5 GB"."""
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= step:
            value = count / step
            return (f"{value:.1f}".removesuffix(".0") if value < 10 else f"{value:.0f}") + f" {unit}"
    return f"{count:.0f} B"
