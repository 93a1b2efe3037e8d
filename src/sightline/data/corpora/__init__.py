"""The corpora that shipped recipes need: where they come from, under which terms, and what is made of the originals.

`catalogue.yaml` lists them; `places` says where they lie on this machine, `download` brings the originals,
`conversion` makes the files that recipes name, and `checking` compares files with what is recorded of them.
"""
