"""`elsewise window`: the window, with files to open in it."""

from __future__ import annotations

from pathlib import Path

import click

from app.cli.group import start_window


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path))
@click.pass_context
def window(context: click.Context, files: tuple[Path, ...]) -> None:
    """Opens the window, as elsewise without a command does, and imports FILES: sessions and GGUF models.

    A window that is already open on the same data folder comes to the front and imports them.
    """
    start_window(context, files=files)
