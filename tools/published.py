"""Accuracies that others published of the models in the catalogue, each with its source.

Top-1 on the 50,000 validation images of ImageNet-1k, in per cent. None of them was measured here.
"""

from dataclasses import dataclass

TIMM = "timm's results-imagenet.csv"
PAPER = "arXiv:2010.11929, table 5"


@dataclass(frozen=True)
class Published:
    """One checkpoint's accuracy: at which image size, after which training, and who says so."""

    model: str
    top1: float
    image_size: int
    weights: str
    source: str = TIMM


AUGREG = "AugReg, ImageNet-21k, then 1k"
ORIGINAL = "the paper's, ImageNet-21k, then 1k"
SCRATCH = "ImageNet-1k alone"

PUBLISHED = (
    Published("vit_ti_16", 75.452, 224, AUGREG),
    Published("vit_s_16", 81.402, 224, AUGREG),
    Published("vit_b_16", 81.782, 224, ORIGINAL),
    Published("vit_b_16", 84.212, 384, ORIGINAL),
    Published("vit_b_16", 84.534, 224, AUGREG),
    Published("vit_b_16", 86.010, 384, AUGREG),
    Published("vit_b_16", 83.97, 384, ORIGINAL, PAPER),
    Published("vit_b_16", 77.91, 384, SCRATCH, PAPER),
    Published("vit_b_32", 81.28, 384, ORIGINAL, PAPER),
    Published("vit_b_32", 73.38, 384, SCRATCH, PAPER),
    Published("vit_l_16", 85.856, 224, AUGREG),
    Published("vit_l_16", 87.096, 384, AUGREG),
    Published("vit_l_16", 85.15, 384, ORIGINAL, PAPER),
    Published("vit_l_16", 76.53, 384, SCRATCH, PAPER),
    Published("vit_l_32", 81.508, 384, ORIGINAL),
    Published("vit_l_32", 80.99, 384, ORIGINAL, PAPER),
    Published("vit_l_32", 71.16, 384, SCRATCH, PAPER),
    Published("vit_h_14", 85.13, 384, ORIGINAL, PAPER),
    Published("vit_r50_b_16", 84.988, 384, "ImageNet-21k, then 1k"),
    Published("deit_ti_16", 72.190, 224, SCRATCH),
    Published("deit_s_16", 79.856, 224, SCRATCH),
    Published("deit_b_16", 81.980, 224, SCRATCH),
    Published("deit_ti_16_distilled", 74.538, 224, "ImageNet-1k and a teacher"),
    Published("deit_s_16_distilled", 81.204, 224, "ImageNet-1k and a teacher"),
    Published("deit_b_16_distilled", 83.384, 224, "ImageNet-1k and a teacher"),
    Published("beit_b_16", 85.238, 224, "masked patches and labels of ImageNet-22k, then 1k"),
    Published("beit_b_16", 86.814, 384, "masked patches and labels of ImageNet-22k, then 1k"),
    Published("swin_t", 81.388, 224, SCRATCH),
    Published("swin_s", 83.228, 224, SCRATCH),
    Published("swin_b", 83.604, 224, SCRATCH),
    Published("swin_l", 86.320, 224, "ImageNet-22k, then 1k"),
    Published("swinv2_t", 81.824, 256, SCRATCH),
    Published("swinv2_s", 83.844, 256, SCRATCH),
    Published("swinv2_b", 84.246, 256, SCRATCH),
    Published("swinv2_t_w16", 82.828, 256, SCRATCH),
    Published("swinv2_s_w16", 84.216, 256, SCRATCH),
    Published("swinv2_b_w16", 84.608, 256, SCRATCH),
    Published("mobilevit_xxs", 68.936, 256, SCRATCH),
    Published("mobilevit_xs", 74.618, 256, SCRATCH),
    Published("mobilevit_s", 78.298, 256, SCRATCH),
    Published("mobilevitv2_100", 78.088, 256, SCRATCH),
    Published("coatnet_0_rw", 82.396, 224, SCRATCH),
)
