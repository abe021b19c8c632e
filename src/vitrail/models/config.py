"""What the config of every family has."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Config:
    """A family adds its own fields: everything that decides what its model computes."""

    image_size: tuple[int, int] = (224, 224)
    channels: int = 3
    num_classes: int = 1000  # 0: no head, the model gives its features
    drop_path: float = 0.0  # of the last block; rises linearly from 0 at the first

    @property
    def features(self) -> int:
        """The width of what the head reads."""
        raise NotImplementedError

    @property
    def tokens(self) -> int:
        """How many tokens the first attention works on, windows and all."""
        raise NotImplementedError
