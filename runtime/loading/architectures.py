"""Which library knows which architecture, told from its files: importing the libraries takes seconds."""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path

# Where a library says that an architecture lives in another's module, and the end of its modules' names
_LIBRARIES = {
    "transformers": ("models/auto/auto_mappings.py", "SPECIAL_MODEL_TYPE_TO_MODULE_NAME", ""),
    "mlx_lm": ("utils.py", "MODEL_REMAPPING", ".py"),
}


def libraries_knowing(kind: str) -> tuple[str, ...]:
    """Which of transformers and mlx_lm have an architecture.

    Args:
        kind: ``model_type`` of a configuration.
    """
    if not (kind[:1].isalnum() and kind.replace("_", "").replace("-", "").replace(".", "").isalnum()):
        return ()
    found = []
    for library, (_, _, suffix) in _LIBRARIES.items():
        name = _elsewhere(library).get(kind, kind).replace("-", "_")
        if any((place / "models" / f"{name}{suffix}").exists() for place in _places(library)):
            found.append(library)
    return tuple(found)


@cache
def _places(library: str) -> tuple[Path, ...]:
    spec = importlib.util.find_spec(library)
    return tuple(Path(place) for place in (spec and spec.submodule_search_locations) or ())


@cache
def _elsewhere(library: str) -> dict[str, str]:
    """Architectures that live in another's module (mlx_lm runs mistral as llama); empty where the library says it otherwise."""
    file, name, _ = _LIBRARIES[library]
    try:
        source = "".join((place / file).read_text("utf-8") for place in _places(library)[:1])
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
