"""Keys and values kept between the calls of decoding."""

from .positions import token_positions

__all__ = ["token_positions"]
