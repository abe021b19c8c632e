"""Graph rewrites: the same function with less work, made from a model without touching it."""
