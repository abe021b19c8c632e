"""Inference: images in, scores, features or tokens out; fast, batched, on one machine or on Ray."""
