"""HTML reports of an inspection: one self-contained file."""
