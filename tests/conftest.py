"""What holds for every test."""

from __future__ import annotations

from hypothesis import settings

# No time limit for an example: how long one takes says how busy the machine is. Where CI is set, hypothesis itself takes
# the same examples every time; elsewhere each run looks at new ones.
settings.register_profile("house", parent=settings(), deadline=None)
settings.load_profile("house")
