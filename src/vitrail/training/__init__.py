"""The one loop, and what it needs: recipe, optimiser, schedule, averages, run checkpoints, log."""
