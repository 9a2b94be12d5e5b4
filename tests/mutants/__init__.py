"""``python -m mutants``: how many changes of the core its tests notice.

`cargo-mutants` lists the changes. All of a sample go into one build, each behind a switch, and the
tests run once for each with its switch on. A build for each change would take twenty times as long.
"""
