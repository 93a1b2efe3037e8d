"""Convolutional encoders and decoders: ConvS2S and ByteNet."""
