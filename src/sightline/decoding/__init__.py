"""One search for every decoder: it knows token ids and the decoder protocol, and nothing of any architecture."""
