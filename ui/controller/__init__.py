"""Between the workbench and the widgets: what is asked, in which order, and what the answers mean for what is shown.

No widget is known here. Every command is a coroutine run by `Tasks`; news comes from the port through `EventQueue`.
"""

from ui.controller.controller import Controller
from ui.controller.showing import Showing

__all__ = ["Controller", "Showing"]
