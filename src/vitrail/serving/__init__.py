"""The HTTP service and the operations behind its page."""
