"""The MLX backend (mlx-lm models); its modules import mlx, so they load on first use."""
