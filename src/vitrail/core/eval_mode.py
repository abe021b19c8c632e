"""Evaluation mode for as long as something is computed, and afterwards as before."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode, then give each its own mode back: a model may be in
    training with some of its modules frozen.

    >>> with eval_mode(model.train()):
    ...     model.training
    False
    >>> model.training
    True
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
