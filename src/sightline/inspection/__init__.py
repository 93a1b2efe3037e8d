"""Looking inside: traces and walk-throughs, alignments, attributions, gradients, pictures; and the machine itself."""
