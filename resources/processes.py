"""Child processes: a child is a module that runs as a program, started by an interpreter or by the executable of a bundle."""

from __future__ import annotations

import ctypes.util
import importlib
import importlib.util
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROLE: Final = "--role"  # first argument of a bundle's executable, which then runs the module named by the second
MOVED: Final = "Elsewise was moved or removed while it was running; quit it, and open it from where it is now"


def is_bundle() -> bool:
    """Whether this is a bundle without an interpreter that takes ``-m``."""
    return bool(getattr(sys, "frozen", False))


def was_moved() -> bool:
    """Whether this is a bundle that was moved or removed while it runs: it starts no child and finds few of its parts."""
    return is_bundle() and not Path(sys.executable).exists()


def is_temporary_copy() -> bool:
    """Whether this is a quarantined bundle, which macOS runs from a place that it makes for each start."""
    return is_bundle() and "/AppTranslocation/" in sys.executable


def child_command(module: str, *arguments: str, isolated: bool = False) -> list[str]:
    """The command line of a child.

    Args:
        module: Dotted; it is run as ``__main__``.
        arguments: For it.
        isolated: No variable of Python's, no user's folder and no package that `module` lies in are read. A bundle's
            interpreter always ignores the variables and folders.

    Raises:
        OSError: The bundle was moved.
    """
    if was_moved():
        raise FileNotFoundError(MOVED)
    if is_bundle():
        return [sys.executable, ROLE, module, *arguments]
    if isolated:
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        return [sys.executable, "-I", spec.origin, *arguments]
    return [sys.executable, "-P", "-m", module, *arguments]  # -P: nothing is imported from the working directory


def _outlive_a_move() -> None:
    """Where a bundle that was moved lacks a module, its import fails; PyInstaller would end the process, with what is typed."""
    try:
        archive = importlib.import_module("pyimod02_importers").pyz_archive
    except ImportError:
        return
    extract = archive.extract

    def extract_or_fail(name: str, raw: bool = False) -> object:  # PyInstaller's signature
        try:
            return extract(name, raw)
        except SystemExit as gone:
            raise ImportError(MOVED) from gone

    archive.extract = extract_or_fail


def start_in_bundle(arguments: Sequence[str]) -> None:
    """First call of a bundle's program: ends as the child that `child_command` or multiprocessing asks for; else returns.

    Args:
        arguments: Of the command line, without the program's name.
    """
    from multiprocessing import freeze_support  # for a bundle alone

    freeze_support()
    _outlive_a_move()
    if arguments[:1] != [ROLE]:
        return
    if os.environ.get("PYTHONUNBUFFERED"):  # ignored by a bundle's interpreter
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a child has both, files of text
    sys.argv = list(arguments[1:])
    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    sys.exit()


def engine_environment(base: Mapping[str, str], backend: str, threads: int | None) -> dict[str, str]:
    """The environment of an engine process: no network, no code from model folders, a fast BLAS where there is one."""
    environment = {name: value for name, value in base.items() if name != "MLX_LM_TRUST_REMOTE_CODE"}
    environment |= {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONSAFEPATH": "1",  # for its own children too
        "PYTHONUNBUFFERED": "1",  # the log is complete when it is killed
    }
    if threads is not None:
        environment |= {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    blas = ctypes.util.find_library("openblas") if sys.platform == "linux" and backend in ("mlx", "auto") else None
    if blas is not None:  # the BLAS that mlx bundles is ten times slower (found by the loader's own search, so it will load)
        environment["LD_PRELOAD"] = ":".join(filter(None, [base.get("LD_PRELOAD"), blas]))
    return environment
