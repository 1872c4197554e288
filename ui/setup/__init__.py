"""The settings of a session, in a popover: model and adapters, system prompt, sampling, format, tools."""
