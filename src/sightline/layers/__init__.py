"""Modules and pure functions, no input or output.

One alphabet of shapes everywhere: B batch, S source length, T target length, D model width, H heads, Dh head width,
V vocabulary, N tokens of a packed batch, W hypotheses per sentence (beam width), R = B·W rows of a search.
"""
