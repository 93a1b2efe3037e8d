"""Bodies (an encoder and a decoder each) and what they are used for."""
