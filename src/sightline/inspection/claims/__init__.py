"""Claims of lectures and textbooks as small computations: one module for each, shown by `sightline inspect claims`."""
