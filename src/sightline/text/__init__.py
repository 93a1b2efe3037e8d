"""Text to ids and back: tokenizers, labels, word vectors, and what must be known of scripts and sentences."""
