"""The workloads document: its forms, its reader and its writer.

It imports ``base``. Begin with ``workloads``.
"""
