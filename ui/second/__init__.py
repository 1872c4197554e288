"""The path under a second model: its numbers, the line that sums them up, the choice of the model."""
