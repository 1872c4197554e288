"""Events, tasks and state behind the widgets."""
