"""What a session is set to, under the model's name in the bar: the model and its adapters, sampling, form, tools."""

from ui.setup.desk import SetupDesk
from ui.setup.popover import MODEL, SAMPLING, SetupPopover

__all__ = ["MODEL", "SAMPLING", "SetupDesk", "SetupPopover"]
