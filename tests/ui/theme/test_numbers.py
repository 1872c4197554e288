from __future__ import annotations

import math

import pytest

from ui.widgets import numbers


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (0.412, ".412"),
        (0.0981, ".098"),
        (0.00099, "<.001"),
        (0.9996, ">.999"),
        (1.0, "1"),
        (0.0, "0"),
        (0.001, ".001"),
        (math.nan, "–"),
    ],
)
def test_probabilities_have_three_decimals_and_no_leading_zero(p: float, text: str) -> None:
    assert numbers.probability(p) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(-2.3229, "−2.323"), (0.0, "0.000"), (-0.0001, "0.000"), (-1234.5, "−1,234.500"), (-math.inf, "−∞"), (math.nan, "–")],
)
def test_log_probabilities_have_a_true_minus_sign_and_no_negative_zero(value: float, text: str) -> None:
    assert numbers.logprob(value) == text


def test_units() -> None:
    assert numbers.nats(-23.94) == "−23.9 nats"
    assert numbers.bits(3.35 * math.log(2)) == "3.35 bits"
    assert numbers.rate(41.2) == "41 tok/s"
    assert numbers.rate(7.04) == "7.0 tok/s"
    assert numbers.count(8192) == "8,192"
