"""Options for loading a model, for drawing tokens and for ending a generation, and the layers that they come from."""
