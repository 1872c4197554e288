"""Several continuations of one place, side by side."""

from ui.columns.panel import ColumnsPanel

__all__ = ["ColumnsPanel"]
