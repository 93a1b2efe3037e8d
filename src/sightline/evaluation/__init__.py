"""Scores with their signatures and confidence intervals."""
