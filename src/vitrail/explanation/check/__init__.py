"""The inspector of hand-written ViTs: a forward pass is traced, read step by step, explained."""
