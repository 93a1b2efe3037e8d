"""What Sightline draws with matplotlib, a file for each kind of picture."""
