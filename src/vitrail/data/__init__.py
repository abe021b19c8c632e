"""From image files to tensors."""
