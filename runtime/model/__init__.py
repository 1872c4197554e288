"""The model in this process."""

from runtime.model.load import load, load_model_by_name
from runtime.model.local import LocalModel

__all__ = ["LocalModel", "load", "load_model_by_name"]
