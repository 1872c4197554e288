"""Fault injection, many times for each kind of fault: `python -m tests.reliability`, see docs/reliability.md."""
