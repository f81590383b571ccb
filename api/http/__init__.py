"""What every request passes: limits, errors, callers, cursors, ETags and the OpenAPI document.

It imports ``api.bootstrap`` and ``api.schemas``. Begin with ``middleware``, then ``dependencies``.
"""
