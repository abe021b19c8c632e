"""What is an address of the web rather than a path."""


def is_address(path: str) -> bool:
    """
    >>> is_address("HTTP://example.org/cat.jpg"), is_address("http/cat.jpg")
    (True, False)
    """
    return path.lower().startswith(("http://", "https://"))
