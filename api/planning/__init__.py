"""Planning outside the event loop: local processes, Dask workers, and the function that both call.

It imports the engines and ``api.schemas``. Begin with ``workers``.
"""
