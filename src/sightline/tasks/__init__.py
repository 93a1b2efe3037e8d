"""Texts in, answers out, whatever the task: translations, continuations, filled gaps, labels, a tag for each word."""
