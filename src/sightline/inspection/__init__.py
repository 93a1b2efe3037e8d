"""Looking inside: alignments, pictures, and the machine itself."""
