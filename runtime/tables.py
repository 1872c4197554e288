"""Results as tables for other libraries: `Tabular`, and `arrow_table` for columns of numpy arrays, texts and bytes.

pyarrow, pandas and polars are optional (extras `arrow`, `pandas`, `polars`) and loaded by the call that needs them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runtime.errors import UnsupportedFeatureError
from runtime.text.utf8 import clean_text

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

Columns = Mapping[str, npt.NDArray[Any] | Sequence[Any]]
LN2 = float(np.log(2))


class Tabular:
    """A result that is a table: one row per token, span or candidate.

    Columns that are also in the view `tokens` of the sessions file (docs/sql.md) have its names and units: `position`,
    `token_id`, `text`, `logprob`, `rank`, `entropy` (nats), `surprisal_bits`. Unknown values are null.
    """

    __slots__ = ()

    def table_columns(self) -> Columns:
        """The columns by name, as `arrow_table` takes them."""
        raise NotImplementedError

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows as plain Python values, None for an unknown one; needs no other library."""
        columns = {name: _plain(column) for name, column in self.table_columns().items()}
        return (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))

    def to_arrow(self) -> pa.Table:
        """A `pyarrow.Table`.

        Raises:
            UnsupportedFeatureError: pyarrow is not installed.
        """
        return arrow_table(self.table_columns())

    def to_pandas(self) -> pd.DataFrame:
        """A `pandas.DataFrame`; as usual in pandas, whole numbers in a column with nulls become floats.

        Raises:
            UnsupportedFeatureError: pandas or pyarrow is not installed.
        """
        optional("pandas", "to_pandas", "pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """A `polars.DataFrame`.

        Raises:
            UnsupportedFeatureError: polars or pyarrow is not installed.
        """
        frame: pl.DataFrame = optional("polars", "to_polars", "polars").from_arrow(self.to_arrow())
        return frame


def arrow_table(columns: Columns, metadata: Mapping[str, Any] | None = None) -> pa.Table:
    """Columns of equal length as a `pyarrow.Table`.

    Args:
        columns: ``(n,)`` arrays, ``(n, k)`` arrays (each row becomes a list), sequences of texts or of bytes. NaN, None and
            values masked by a `numpy.ma` array become null; the list of a row leaves them out.
        metadata: Metadata of the schema; values other than texts are stored as JSON.

    Raises:
        UnsupportedFeatureError: pyarrow is not installed.
    """
    arrow = optional("pyarrow", "to_arrow", "arrow")
    table: pa.Table = arrow.table({name: _arrow_column(arrow, column) for name, column in columns.items()})
    if metadata is None:
        return table
    return table.replace_schema_metadata({k: v if isinstance(v, str) else json.dumps(v) for k, v in metadata.items()})


def optional(module: str, what: str, extra: str) -> Any:
    """An optional library.

    Raises:
        UnsupportedFeatureError: The library is not installed; the message names the package to install for `what`.
    """
    try:
        return import_module(module)
    except ImportError as fault:
        raise UnsupportedFeatureError(
            f"{what} needs {module}, which is not installed (`pip install {module}`, the extra elsewise[{extra}])"
        ) from fault


def token_numbers(logprob: npt.NDArray[Any], rank: npt.NDArray[Any], entropy: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """The columns `logprob`, `rank`, `entropy` and `surprisal_bits`, ``(n,)`` each; a rank of 0 is masked."""
    ranks: npt.NDArray[Any] = np.ma.masked_equal(rank, 0)
    return {"logprob": logprob, "rank": ranks, "entropy": entropy, "surprisal_bits": -logprob.astype(np.float64) / LN2}


def top_columns(top_ids: npt.NDArray[Any], top_logprobs: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """The columns `top_ids` and `top_logprobs`, ``(n, k)`` each; places without a token (negative ids) are masked."""
    ids: npt.NDArray[Any] = np.ma.masked_less(top_ids, 0)
    return {"top_ids": ids, "top_logprobs": np.ma.array(top_logprobs, mask=np.ma.getmaskarray(ids))}


def _known(column: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """The values, and a mask that is True for known values."""
    values: npt.NDArray[Any] = np.ma.getdata(column)
    known: npt.NDArray[np.bool_] = ~np.ma.getmaskarray(column)
    return values, known & ~np.isnan(values) if values.dtype.kind == "f" else known


def _plain(column: npt.NDArray[Any] | Sequence[Any]) -> Sequence[Any]:
    if not isinstance(column, np.ndarray):
        return column
    values, known = _known(column)
    if values.ndim == 1:
        return [value if there else None for value, there in zip(values.tolist(), known.tolist(), strict=True)]
    return [row[there].tolist() for row, there in zip(values, known, strict=True)]


def _arrow_column(arrow: Any, column: npt.NDArray[Any] | Sequence[Any]) -> Any:
    if isinstance(column, np.ndarray):
        values, known = _known(column)
        if values.ndim == 1:
            return arrow.array(values, mask=~known)
        ends = np.concatenate(([0], np.cumsum(known.sum(axis=1)))).astype(np.int32)
        return arrow.ListArray.from_arrays(arrow.array(ends), arrow.array(values[known]))
    texts = any(isinstance(value, str) for value in column)
    if texts or all(value is None for value in column):
        return arrow.array([None if value is None else clean_text(value) for value in column], arrow.string())
    return arrow.array(column)
