"""What pages are made of: rendering, sessions, forms, tables, cards and charts.

It imports nothing of the other rooms. Begin with ``rendering``.
"""
