"""Cleans text and JSON before they are saved.

A lone surrogate cannot be encoded as UTF-8, and a NUL ends a string for SQL's length and LIKE, so both become U+FFFD. Only text
columns are cleaned; token columns keep the exact bytes.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np

from storage.errors import InvalidRowError

_UNWRITABLE = re.compile("[\x00\ud800-\udfff]")


def clean(text: str) -> str:
    """`text` with every NUL and lone surrogate replaced by U+FFFD."""
    return _UNWRITABLE.sub("\ufffd", text)


def to_json(value: Any) -> str:
    """`value` as JSON text; NaN and infinities become null, numpy numbers become plain numbers.

    Raises:
        InvalidRowError: `value` cannot be represented in JSON.
    """
    try:
        return msgspec.json.encode(_cleaned(value), enc_hook=_plain).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRowError(f"cannot be saved as JSON: {error}") from error


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {_cleaned(k): _cleaned(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(v) for v in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a JSON value")
