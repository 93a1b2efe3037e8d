"""Feed-forward encoders and decoders that see a fixed window (Bengio et al. 2003)."""
