"""Summaries that need no model, so that the scores of models mean something: the first sentences, the best ones."""
