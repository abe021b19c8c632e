"""The claims of `vitrail reproduce`: one module for each, over the same runs, record and page."""
