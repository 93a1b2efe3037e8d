"""Transformer encoders and decoders, and the KV cache of their decoders."""
