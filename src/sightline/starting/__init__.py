"""What a training begins with: the tokenizer and the weights of another run, word vectors."""
