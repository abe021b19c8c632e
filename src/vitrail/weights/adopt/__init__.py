"""Adoption: a ViT that somebody wrote by hand, matched with ours by words, shapes and order."""
