"""Tasks: sequence-to-sequence, language modelling, masked LM, denoising, classification and tagging."""
