"""Training text that a model wrote: distillation and back-translation."""
