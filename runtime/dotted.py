"""Objects by dotted name, for names that cross a pipe."""

from __future__ import annotations

import importlib
from typing import Any

from runtime.errors import InvalidRequestError


def resolve(dotted: str) -> Any:  # of any type
    """The object named "package.module:name".

    Raises:
        InvalidRequestError: The name has another form, or the object does not exist.
    """
    module, colon, name = dotted.partition(":")
    if not (module and colon and name):
        raise InvalidRequestError(f"{dotted!r} does not name an object; write 'package.module:name'")
    try:
        return getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError) as missing:
        raise InvalidRequestError(f"{dotted!r} cannot be found in this process: {missing}") from missing
