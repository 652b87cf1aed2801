"""A dashboard in the browser: a cluster as it is, what has happened to it and why, and what to do about it.

`insync dashboard --servers ...` runs it; `_server` puts the parts together. Content is separate from presentation:
`_look` (one reading of the cluster), `_history` (readings over time), `_changes` (what nodes have told),
`_findings` (what is wrong, in words), `_browse` and `_decode` (records) and `_plans` (changes, described before
they are made) know nothing of a browser. `pages` draws them, `_guard` decides who may see them.
"""
