"""The colours: light and dark, each also in high contrast, with the ramps that colour tokens.

Text on every step of the ramps has a contrast of 4.5 : 1 at least, in high contrast of 7 : 1 (WCAG 2.2, AA and AAA).
"""

from __future__ import annotations

from msgspec import Struct

from resources import ramp


class Palette(Struct, frozen=True):
    """Colours as "#rrggbb". `surprise` goes from least to most; None is no colour.

    `difference` has three steps for tokens that a second model finds less likely (orange), then three for more likely ones
    (blue): a pair that every kind of colour vision can distinguish. Text keeps its colour on all of them.
    """

    dark: bool
    window: str
    sidebar: str
    panel: str
    card: str
    text: str
    soft: str
    faint: str
    hairline: str
    selection: str
    accent: str
    bar: str
    bar_rest: str
    disk: str
    code: str
    literal: str  # strings and numbers in code; a cool colour, for warm ones mean unlikely tokens
    warm: str  # warnings
    on_accent: str
    on_strongest: str
    surprise: ramp.Ramp
    difference: tuple[str | None, str, str, str, str, str, str]


LIGHT = Palette(
    dark=False,
    window="#fcfcfa",
    sidebar="#f4f4f1",
    panel="#f8f8f5",
    card="#ffffff",
    text="#1d1d1b",
    soft="#6b6b65",
    faint="#a3a29b",
    hairline="#e5e4df",
    selection="#e4efe9",
    accent="#0b6b5a",
    bar="#0b6b5a",
    bar_rest="#b9d8cf",
    disk="#9cc4b8",
    code="#f1f1ed",
    literal="#3d5a80",
    warm="#c44b2d",
    on_accent="#fcfcfa",
    on_strongest="#ffffff",
    surprise=ramp.LIGHT,
    difference=(None, "#fdebd3", "#f8cd98", "#ee9f4c", "#dfeaf6", "#abcbea", "#6ea8dc"),
)

DARK = Palette(
    dark=True,
    window="#1c1d1c",
    sidebar="#161716",
    panel="#191a19",
    card="#262725",
    text="#ecece7",
    soft="#a2a29b",
    faint="#6d6d68",
    hairline="#2d2e2c",
    selection="#22302c",
    accent="#5fc9b1",
    bar="#5fc9b1",
    bar_rest="#2c4f47",
    disk="#366e61",
    code="#242523",
    literal="#9db8d9",
    warm="#e0805c",
    on_accent="#1c1d1c",
    on_strongest="#ffffff",
    surprise=ramp.DARK,
    difference=(None, "#33291b", "#5a4019", "#875614", "#1b2b3b", "#234769", "#2b649c"),
)

HIGH_LIGHT = Palette(
    dark=False,
    window="#ffffff",
    sidebar="#f7f7f4",
    panel="#ffffff",
    card="#ffffff",
    text="#000000",
    soft="#3a3a36",
    faint="#4a4a46",
    hairline="#767670",
    selection="#d5ebe2",
    accent="#064c3f",
    bar="#064c3f",
    bar_rest="#8cc7b8",
    disk="#4f8d7e",
    code="#efefeb",
    literal="#1f3d63",
    warm="#8a2c10",
    on_accent="#ffffff",
    on_strongest="#ffffff",
    surprise=(None, "#ffeed6", "#ffd9a3", "#fbbc6c", "#ee9a58", "#8a2c10"),
    difference=(None, "#ffe9c9", "#ffc477", "#f09a3a", "#d9e9fa", "#9cc6f0", "#64a6e6"),
)

HIGH_DARK = Palette(
    dark=True,
    window="#000000",
    sidebar="#0b0b0b",
    panel="#000000",
    card="#161716",
    text="#ffffff",
    soft="#d6d6d0",
    faint="#bdbdb6",
    hairline="#84847e",
    selection="#0a3129",
    accent="#7ce3cb",
    bar="#7ce3cb",
    bar_rest="#175547",
    disk="#3f9480",
    code="#161716",
    literal="#b5d0f2",
    warm="#ff9a5c",
    on_accent="#000000",
    on_strongest="#000000",
    surprise=(None, "#2e2210", "#4a3411", "#664412", "#7a4a10", "#ff9a5c"),
    difference=(None, "#33240c", "#553a0e", "#714a0c", "#12263b", "#193e63", "#1c5080"),
)
