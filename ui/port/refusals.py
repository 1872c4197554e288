"""How the workbench says no."""

from __future__ import annotations


class Refusal(Exception):
    """A command that was not carried out. The text says what was wrong and what to do; nothing was lost."""


class ModelRefusal(Refusal):
    """There is no model for it, or the one in use cannot: another one may be chosen."""


class ShownElsewhere(Refusal):
    """A session is not opened here since another window shows it, which comes to the front."""
