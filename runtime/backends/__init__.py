"""Engines behind the runtime, loaded on first use."""
