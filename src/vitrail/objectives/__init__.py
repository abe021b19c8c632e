"""From a batch to losses: what a model is trained for."""
