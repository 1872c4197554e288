"""The global options and text parameters, apart from the command group so that neither imports the other."""

from __future__ import annotations

import os
from typing import Final

import click
from msgspec import Struct

from app.paths import DataFolder

ESCAPE: Final = "elsewise-escape"  # the error handler of stdout


class CliSettings(Struct, frozen=True):
    """The global options."""

    data: DataFolder
    model: str
    backend: str

    def chosen(self, model: str | None, backend: str | None) -> tuple[str, str]:
        """A command's own model and backend, else the global ones. Loading refuses an empty name (an unset variable)."""
        return self.model if model is None else model, self.backend if backend is None else backend


def utf8(text: str) -> str:
    """Decodes a text as UTF-8, where Python decoded it by the locale and left surrogates.

    Raises:
        UnicodeError: The bytes are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return os.fsencode(text).decode()
    return text


class Utf8Text(click.types.StringParamType):
    """A text for a model or a session (not a name or a path): UTF-8 under every locale."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuses bytes that are not UTF-8, as for files and stdin."""
        try:
            return utf8(super().convert(value, param, ctx))
        except UnicodeError:
            self.fail("it is not UTF-8", param, ctx)


TEXT: Final = Utf8Text()
