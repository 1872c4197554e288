"""The pages of the popover, by their place. Nothing else is here, so that who names one loads none."""

MODEL, SAMPLING, FORM, TOOLS = range(4)
