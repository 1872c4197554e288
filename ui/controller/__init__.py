"""The controller between workbench and widgets: runs commands, takes their results and the port's events.

It knows no widget. Every command is a coroutine run by `Tasks`; events of the port come through `EventQueue`.
"""

from ui.controller.controller import Controller

__all__ = ["Controller"]
