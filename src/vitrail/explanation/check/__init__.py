"""The inspector of hand-written ViTs: a forward pass is traced, compared step by step, explained."""
