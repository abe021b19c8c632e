"""Scripts of the project itself: the documentation site and the release."""
