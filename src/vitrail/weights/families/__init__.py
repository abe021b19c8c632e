"""One file a family: sizes by our names, what files leave open, resizing."""
