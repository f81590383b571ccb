"""The documentation as pages: what is written in ``docs/``, and the reference that is made from the code.

It imports ``parts``. Begin with ``documentation``.
"""
