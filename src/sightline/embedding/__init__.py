"""Vectors of words where they stand: what a model makes of each, and of one word in many places."""
