"""`elsewise`: opens the window; with a command, uses the same runtime and sessions in a terminal."""

from __future__ import annotations

import builtins
import codecs
import gc
import io
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final, NoReturn

import click

import runtime  # its names are imported at their first use
from app.cli.settings import ESCAPE, CliSettings
from app.paths import DataFolder
from runtime import BackendUnavailableError, RuntimeFault, UnknownBackendError, __version__
from storage import StoreError

SHOW_CURSOR: Final = "\x1b[?25h"
COMMANDS = {
    "ask": "ask",
    "bench": "bench",
    "chat": "chat",
    "doctor": "doctor",
    "embed": "score.embed",
    "lens": "score.lens",
    "models": "models.shelf",
    "score": "score.score",
    "serve": "serve",
    "sessions": "sessions",
    "window": "group",
}  # the module of `app.cli`, by the command's name


class Commands(click.Group):
    """Imports a command at its first use: the window needs none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"app.cli.{COMMANDS[cmd_name]}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


def _named_folder(_context: click.Context, _option: click.Parameter, folder: str | None) -> Path | None:
    """Refuses the empty path of an unset variable, which would mean the working directory.

    Raises:
        click.BadParameter: It is empty.
    """
    if folder == "":
        raise click.BadParameter("the path is empty; name a folder, or leave the option out")
    return None if folder is None else Path(folder)


@click.group(cls=Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    callback=_named_folder,
    help="Folder of sessions and settings.",
)
@click.option("--verbose", is_flag=True, help="More messages on stderr.")
@click.option("--model", default="smollm2", show_default=True, help="A model folder, a GGUF file, or a name on the shelf.")
@click.option("--backend", default="auto", show_default=True, help="auto, hf, mlx, mock, or a registered one.")
@click.option("--connect", metavar="URL", help="Open the window with a model on a server; --model is its id there.")
@click.option("--demo", is_flag=True, help="Open the window on the sample session, without a model.")
@click.version_option(__version__, prog_name="elsewise")
@click.pass_context
def cli(
    context: click.Context, data_dir: Path | None, verbose: bool, model: str, backend: str, connect: str | None, demo: bool
) -> None:
    """Runs language models on this machine and shows what else they might have said.

    Without a command, opens the window.
    """
    said = "%(name)s: %(message)s" if verbose else "elsewise: %(message)s"  # users see warnings; --verbose is for bug reports
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format=said)
    folder = DataFolder(data_dir.resolve()) if data_dir else DataFolder.default()
    command = context.invoked_subcommand
    if demo and command is not None:
        raise click.UsageError(f"--demo opens the window on the sample session: leave it out, or the command {command}")
    if connect is not None:
        if command is not None and command != "window":
            raise click.UsageError(_where_connect_goes(context, command, connect))
        named = context.get_parameter_source("model") is not click.core.ParameterSource.DEFAULT
        model = runtime.server_address(connect) + (f"#{model}" if named else "")
    context.obj = CliSettings(folder, model, backend)
    if context.invoked_subcommand is None:
        start_window(context, demo=demo)


def _where_connect_goes(context: click.Context, command: str, url: str) -> str:
    found = cli.get_command(context, command)
    if found is not None and any("--connect" in option.opts for option in found.params):
        return f"--connect goes behind the command: elsewise {command} --connect {url}"
    return f"--connect opens the window with a model on a server: leave it out, or the command {command}"


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, resolve_path=True, path_type=Path))
@click.pass_context
def window(context: click.Context, files: tuple[Path, ...]) -> None:
    """Opens the window, as elsewise without a command does, and imports FILES: sessions and GGUF models.

    A window that is already open on the same data folder comes to the front and imports them.
    """
    start_window(context, files=files)


def start_window(context: click.Context, *, demo: bool = False, files: Sequence[Path] = ()) -> NoReturn:
    """Opens the window with `files`; exits when it is closed.

    Raises:
        UnknownBackendError: There is no such backend; suggests the nearest name.
    """
    settings: CliSettings = context.obj
    if settings.backend != "auto":
        with suppress(BackendUnavailableError):  # the window explains one that cannot run here
            runtime.check_backend(settings.backend)
    gc.disable()  # objects of the start stay alive; collecting garbage would take a tenth of it
    _import_numpy()
    plain = builtins.__import__
    import PySide6.QtWidgets  # noqa: F401  # replaces `__import__` by one that reads each module's source for `__feature__`

    builtins.__import__ = plain  # we do not use `__feature__`; the replacement takes a tenth of the start
    from app.window import open_window  # only the window needs Qt

    context.exit(open_window(settings.data, settings.model, settings.backend, demo=demo, files=files))


def _import_numpy() -> None:
    """Keeps OpenBLAS from starting threads, which take a fifth of the start; the window multiplies no large matrices.

    OpenBLAS reads the variable when it is loaded. It is deleted then, since engines on Linux need the threads.
    """
    if "OPENBLAS_NUM_THREADS" in os.environ:
        return
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import numpy  # noqa: F401  # loads OpenBLAS

    del os.environ["OPENBLAS_NUM_THREADS"]


def _escaped(error: UnicodeError) -> tuple[str, int]:
    r"""Replaces characters that the encoding lacks by JSON's escapes: ``\u00e9``."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)), error.end


def _make_output_safe() -> None:
    """Makes stdout accept every text: UTF-8 instead of ASCII, escapes in other encodings, so that JSON stays valid."""
    codecs.register_error(ESCAPE, _escaped)
    if sys.stdout is None:  # closed by the caller
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  # until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper):
        ascii_only = codecs.lookup(sys.stdout.encoding).name == "ascii"
        sys.stdout.reconfigure(encoding="utf-8" if ascii_only else None, errors=ESCAPE)


def _interrupted() -> NoReturn:
    """Ends at once with the exit code of Ctrl-C, although other threads may still load or compute."""
    sys.stderr.write(SHOW_CURSOR if sys.stderr.isatty() else "")  # a spinner on another thread may have hidden it
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the reader or the stream is closed
            stream.flush()
    os._exit(128 + signal.SIGINT)


def run() -> None:
    """Runs the command line and exits."""
    _make_output_safe()
    try:
        code = cli(standalone_mode=False)
    except click.exceptions.Abort as stop:
        click.echo("stopped", err=True)
        if isinstance(stop.__cause__, KeyboardInterrupt):
            _interrupted()
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except RuntimeFault as error:
        from app.cli.options import in_options  # imported only for a fault

        click.echo(f"elsewise: {in_options(error)}", err=True)
        sys.exit(2 if isinstance(error, UnknownBackendError) else 1)
    except (StoreError, OSError) as error:
        click.echo(f"elsewise: {error}", err=True)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)
