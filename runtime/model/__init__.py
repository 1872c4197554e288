"""The model in this process."""

from runtime.model.genlm import load_model_by_name
from runtime.model.load import load
from runtime.model.local import LocalModel

__all__ = ["LocalModel", "load", "load_model_by_name"]
