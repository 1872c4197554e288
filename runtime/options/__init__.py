"""What a caller can set: how a model is loaded, how tokens are drawn, when generation ends, and which layer decides."""
