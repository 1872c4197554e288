"""What could go wrong, tried many times: `python -m tests.reliability`, see docs/reliability.md."""
