"""Running generations: one token for each per step."""
