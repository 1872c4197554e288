"""Models: what is on the shelf, what is fetched for it, whether it fits."""
