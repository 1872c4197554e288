"""LoRA adapters as plain numpy: read from a folder, checked against a model, named, stacked.

No tensor library is imported: a backend turns an `Adapter` into its own weights. Each module adds
``scale * scaling * B (A x)`` to its output, in the order of the stack (Hu et al. 2021; rank-stabilised scaling:
Kalajdzievski 2023; activated LoRA: Greenewald et al. 2025).
"""
