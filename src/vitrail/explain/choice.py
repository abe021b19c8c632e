"""The method that points best, by the layout of a model's tokens.

Which one that is was measured on models whose evidence is known (docs/benchmarks.md, "Pointing at
planted evidence").
"""

from torch import nn

from vitrail.explain.capture import attentions_of


def choose_method(model: nn.Module) -> str:
    """`attribution` where one attention over all patches feeds a class token, so that attention is
    the only way on which a patch reaches the answer; `smoothgrad` where windows, folds,
    convolutions or pooling over patches mix them by other ways too; `rollout` without a head.

    >>> choose_method(model)
    'attribution'
    """
    if not getattr(getattr(model, "config", None), "num_classes", 1):
        return "rollout"  # there is no class to explain
    layouts = [attend.layout for attend in attentions_of(model).values()]
    everywhere = all(layout.window is None and layout.fold is None for layout in layouts)
    reads_token = all(layout.prefix for layout in layouts)
    return "attribution" if everywhere and reads_token else "smoothgrad"
