"""The workloads document: its reader, the fields of the form, and edits of its text.

Its own fields are the dataclasses of ``broker.domain.planning.workload``.

It imports ``base``. Begin with ``workloads``.
"""
