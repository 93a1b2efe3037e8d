"""The corpora of shipped recipes: download, conversion and checks.

`catalogue.yaml` lists their origins, terms and files; `download` fetches the originals, `conversion` makes the files
that recipes name, and `checking` compares files with recorded checksums.
"""
