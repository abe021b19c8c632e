// Drawing: viridis overlays that leave the photo visible, grids, windows, sinks, and files of what is shown.
