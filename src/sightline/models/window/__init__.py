"""Feed-forward encoders and decoders over a fixed window (Bengio et al. 2003)."""
