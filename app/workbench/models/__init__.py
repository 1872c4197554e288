"""Models on this machine and the hub, and the settings they are loaded with."""
