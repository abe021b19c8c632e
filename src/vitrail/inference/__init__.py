"""Using a model: pictures in, answers out."""
