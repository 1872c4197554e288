"""LoRA adapters as plain numpy: read from a folder, checked against a model, named, stacked.

Knows no tensor library: a backend turns an `Adapter` into weights of its own. What a module adds is
``scale * scaling * B (A x)``, in the order of the stack (Hu et al. 2021; rank-stabilised scaling: Kalajdzievski 2023;
activated LoRA: Greenewald et al. 2025).
"""
