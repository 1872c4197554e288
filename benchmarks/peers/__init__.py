"""Peers: the same requests, answered by transformers and mlx_lm."""
