"""Architectures of transformers and mlx_lm, read from the libraries' files: importing them takes seconds."""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path

# File and name of the table that maps an architecture to the module of another one; suffix of its modules (none: folders)
_LIBRARIES = {
    "transformers": ("models/auto/auto_mappings.py", "SPECIAL_MODEL_TYPE_TO_MODULE_NAME", ""),
    "mlx_lm": ("utils.py", "MODEL_REMAPPING", ".py"),
}

_LONGEST = 200  # characters of an architecture's name; a file name cannot be much longer
_ARGUMENTS = ("args", "config", "params", "text_config")  # names of a configuration in mlx_lm's modules
_SHARED = ("base", "cache")  # modules that every architecture imports from


def libraries_knowing(kind: str) -> tuple[str, ...]:
    """Those of transformers and mlx_lm that implement an architecture, given as a ``model_type``."""
    if len(kind) > _LONGEST or not kind.isascii():  # other characters may take four bytes each in a file name
        return ()
    if not (kind[:1].isalnum() and kind.replace("_", "").replace("-", "").replace(".", "").isalnum()):
        return ()
    found = []
    for library, (_, _, suffix) in _LIBRARIES.items():
        name = _modules(library).get(kind, kind).replace("-", "_")
        if any((place / "models" / f"{name}{suffix}").exists() for place in _places(library)):
            found.append(library)
    return tuple(found)


@cache
def words_in_source(kind: str) -> frozenset[str]:
    """Names and string constants in mlx_lm's module of a ``model_type``; a configuration field that it reads is "args.NAME".

    Includes the modules that it imports from, except `_SHARED`; leaves out fields that are declared but never read.
    """
    places = _places("mlx_lm")
    todo, found, read = [_modules("mlx_lm").get(kind, kind).replace("-", "_")] if places else [], set[str](), set[str]()
    while todo:
        name = todo.pop()
        file = places[0] / "models" / f"{name}.py"
        if name in read or name in _SHARED or not file.is_file():
            continue
        read.add(name)
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            match node:
                case ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=word):
                    found.add(f"args.{word}" if owner in _ARGUMENTS else word)
                case ast.Constant(value=str(word)) | ast.Name(id=word, ctx=ast.Load()):
                    found.add(word)
                case ast.ImportFrom(level=1, module=module, names=names):
                    todo += [module] if module else [alias.name for alias in names]
    return frozenset(found)


@cache
def _places(library: str) -> tuple[Path, ...]:
    spec = importlib.util.find_spec(library)
    return tuple(Path(place) for place in (spec and spec.submodule_search_locations) or ())


@cache
def _modules(library: str) -> dict[str, str]:
    """Module names by architecture, where the two differ (mlx_lm runs mistral as llama); empty where the table is not found."""
    file, name, _ = _LIBRARIES[library]
    try:
        source = (_places(library)[0] / file).read_text("utf-8")
        table = next(
            node.value
            for node in ast.parse(source).body
            if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets)
        )
        if isinstance(table, ast.Call):  # OrderedDict([...])
            table = table.args[0]
        return {str(kind): str(module) for kind, module in dict(ast.literal_eval(table)).items()}
    except (OSError, SyntaxError, ValueError, TypeError, StopIteration, IndexError):
        return {}
