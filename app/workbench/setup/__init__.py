"""What a session is set to: options and presets, system prompt and tools, form of the answer, adapters."""
