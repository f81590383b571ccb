"""Planning outside the event loop: local processes, Dask workers, and the call that both run.

It imports the engines and ``api.schemas``. Begin with ``workers``.
"""
