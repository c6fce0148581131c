"""The book as static web pages, made from what exists: docstrings, code, runs, figures, mutants, lessons.

    make site          builds site/
    make show          serves it at localhost, and opens it

Nothing is written twice: `build.py` lays out sources for Sphinx, `annotate.py` sets a chapter's notes next to its code,
`changes.py` a method next to the one that it replaces, `runs.py` runs chapters and keeps what they print and draw.
The pages that compute have their forms in `forms.py` and what they show in `views/`, which also runs in the browser.
`traces.py` runs collectives on ranks and records what they send, and a page plays that.
"""
