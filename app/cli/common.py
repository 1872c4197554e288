"""What the commands share."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from app.paths import DataFolder
from runtime import LanguageModel, load

console = Console(stderr=True)
PIPE_WIDTH = 10_000  # characters; wider than any row


@dataclass(frozen=True, slots=True)
class Settings:
    """The global options."""

    data: DataFolder
    model: str
    backend: str


def load_model(model: str, backend: str) -> LanguageModel:
    """Loads a model into this process, with a spinner on stderr."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.pop("MLX_LM_TRUST_REMOTE_CODE", None)
    with console.status(f"loading {model}"):
        return load(model, backend)


def print_table(table: Table) -> None:
    """A table on stdout; whole lines where another program reads them."""
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)


def read_text(file: str) -> str:
    """A file's text, or stdin's for "-".

    Raises:
        click.ClickException: It cannot be read, or is not UTF-8.
    """
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{file}: not UTF-8 at byte {error.start:,}; only plain text can be read") from error
