"""Identity providers of OpenID Connect: protocol by Authlib, cryptography by joserfc, over httpx.

It imports the ground and its settings. Begin with ``openid``.
"""
