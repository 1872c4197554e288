"""The torch and transformers backend; its modules import them, so they load on first use."""
