"""From files to batches: sources of examples, noise, the tokenized store, and which examples go together."""
