"""A plug-in for Sightline, one file for each part. Its entry point in `sightline.plugins` names this module."""

from example_plugin import bag_of_words, cosine, length_ratio, no_repeated_token, positions, training_parts

__all__ = ["bag_of_words", "cosine", "length_ratio", "no_repeated_token", "positions", "training_parts"]
