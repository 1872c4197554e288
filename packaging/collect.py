"""What a bundle ships: the distributions that Elsewise requires, file by file as installed, and their licences.

Used by elsewise.spec and package.py. Whole distributions, not what an analysis of imports finds: transformers and torch load
modules by name and read their own sources, and mlx finds its metallib beside its one libmlx.
"""

from __future__ import annotations

import fnmatch
import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

# PyInstaller's hooks know Qt's parts and macOS frameworks; our own modules are compiled into the executable's archive.
ANALYSED = ("elsewise", "pyside6-essentials", "shiboken6")
LEFT_OUT = (  # headers, tests, tools for developers, and what pip writes about an installation
    *("*.pyc", "*.pyi", "*.dist-info/RECORD", "*.dist-info/INSTALLER", "*.dist-info/REQUESTED", "*.dist-info/direct_url.json"),
    *("torch/test/*", "torch/include/*", "torch/share/*", "torch/bin/[!t]*", "torch/bin/test_*", "torch/lib/*.a", "torch/lib/*test*"),
    *("torch/utils/benchmark/*", "torchgen/packaged/*"),
    *("mlx/include/*", "mlx/share/*", "numpy/*/tests/*", "numpy/tests/*", "numpy/_core/include/*", "numpy/f2py/*", "*.lib"),
    *("sympy/*/tests/*", "sympy/*/*/tests/*", "sympy/*/*/*/tests/*", "sympy/*/benchmarks/*", "networkx/*/tests/*", "networkx/*/*/tests/*"),
    *("mpmath/tests/*", "psutil/tests/*", "sqlite_utils/docs/*"),
)


def required(extras: tuple[str, ...]) -> dict[str, importlib.metadata.Distribution]:
    """The distributions that Elsewise with these extras needs on this machine, by name; pip too, which fetches the default model."""
    found: dict[str, importlib.metadata.Distribution] = {}

    def visit(name: str, extras: tuple[str, ...]) -> None:
        key = name.lower().replace("_", "-")
        if key in found and not extras:
            return
        found[key] = importlib.metadata.distribution(name)
        for line in found[key].requires or ():
            needs = Requirement(line)
            if needs.marker is None or any(needs.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                visit(needs.name, tuple(needs.extras))

    visit("elsewise", extras)
    visit("pip", ())
    return found


def files(distribution: importlib.metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """(path in the bundle, path here) of each file to ship; of an analysed distribution its description alone."""
    analysed = distribution.metadata["Name"].lower().replace("_", "-") in ANALYSED
    for file in distribution.files or ():
        inside, here = file.as_posix(), Path(str(distribution.locate_file(file)))
        described = file.parts[0].endswith(".dist-info")
        wanted = described or (not analysed and file.parts[0] != ".." and len(file.parts) > 0)
        if wanted and not any(fnmatch.fnmatch(inside, pattern) for pattern in LEFT_OUT) and here.is_file():
            yield inside, here


def modules(distribution: importlib.metadata.Distribution) -> set[str]:
    """Its top-level names, which the analysis leaves alone."""
    tops = {Path(inside).parts[0].partition(".")[0] for inside, _ in files(distribution)}
    return {top for top in tops if top.isidentifier()}


def not_analysed() -> set[str]:
    """Top-level names of all that is installed here: what is shipped is shipped whole, the tools of developers not at all."""
    found = importlib.metadata.distributions()
    names = set().union(*(modules(each) for each in found if each.metadata["Name"].lower().replace("_", "-") not in ANALYSED))
    return names - sys.stdlib_module_names - {"app", "elsewise", "resources", "runtime", "storage", "ui", "PySide6", "shiboken6"}


def not_shipped(extras: tuple[str, ...]) -> set[str]:
    """Those of them that no bundle may have."""
    return not_analysed() - set().union(*map(modules, required(extras).values()))


def licence_texts(distribution: importlib.metadata.Distribution) -> list[Path]:
    """The files with the text of its licence."""
    words = ("licen", "copying", "notice", "authors")
    texts = [
        Path(str(distribution.locate_file(file)))
        for file in distribution.files or ()
        if file.parts[0].endswith(".dist-info") and any(word in file.name.lower() for word in words)
    ]
    return [path for path in texts if path.is_file()]


def extras() -> tuple[str, ...]:
    """torch for Linux; MLX alone on a Mac."""
    return () if sys.platform == "darwin" else ("hf",)
