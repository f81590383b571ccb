"""Planning again from a plan that stands.

It imports ``pipeline`` and all rooms. Begin with ``replan``.
"""
