"""An encoder that is token embeddings and positions alone."""
