"""Canaille, a real OpenID Connect provider, as a process with people in a SQLite file.

It prints its issuer and private keys when it serves. Then each line on standard input is one thing that
happens at the provider (``rotate``, ``lock``, ``leave``), and each is answered by a line.
"""

import datetime
import json
import sys
import threading
from typing import Any

from canaille import create_app
from canaille.app import models
from canaille.backends import Backend
from joserfc import jwk
from werkzeug.serving import make_server

CLIENT = "broker"


def main() -> None:
    given = json.loads(sys.argv[1])
    key = jwk.RSAKey.generate_key(2048, auto_kid=True)
    held: dict[str, Any] = {}
    server = make_server("127.0.0.1", 0, lambda environ, start: held["app"](environ, start), threaded=True)
    name = f"127.0.0.1:{server.server_port}"
    app = held["app"] = create_app(
        {
            "SECRET_KEY": "of this test alone",
            "SERVER_NAME": name,
            "PREFERRED_URL_SCHEME": "http",
            "WTF_CSRF_ENABLED": False,
            "CANAILLE": {"DATABASE": "sql", "ENABLE_PASSWORD_COMPROMISSION_CHECK": False},
            "CANAILLE_SQL": {
                "DATABASE_URI": f"sqlite:///{given['folder']}/canaille.db",
                "PASSWORD_SCHEMES": "plaintext",
            },
            "CANAILLE_OIDC": {"ACTIVE_JWKS": [key.as_dict(private=True)], "REQUIRE_NONCE": True},
        },
    )
    with app.app_context(), Backend.instance.session():
        settle(given)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    say({"issuer": f"http://{name}", "keys": app.config["CANAILLE_OIDC"]["ACTIVE_JWKS"]})
    for line in sys.stdin:
        with app.app_context(), Backend.instance.session():
            say(happen(app, json.loads(line)))


def say(document: object) -> None:
    print(json.dumps(document), flush=True)


def settle(given: dict[str, Any]) -> None:
    """The client and the people with their groups."""
    client = models.Client(
        client_id=CLIENT,
        client_name="GPU capacity broker",
        client_secret=given.get("client_secret"),
        client_uri="http://127.0.0.1",
        redirect_uris=given["redirect_uris"],
        post_logout_redirect_uris=given["post_logout_redirect_uris"],
        grant_types=["authorization_code", "refresh_token", "password"],
        response_types=["code"],
        scope=["openid", "profile", "email", "groups"],
        token_endpoint_auth_method="client_secret_basic" if given.get("client_secret") else "none",
    )
    Backend.instance.save(client)
    client.audience = [client]
    Backend.instance.save(client)
    for name, groups in given["people"].items():
        user = models.User(
            user_name=name,
            formatted_name=name.title(),
            family_name=name.title(),
            emails=[f"{name}@example.org"],
            password="a password of the test",
        )
        Backend.instance.save(user)
        put_into(user, groups)


def put_into(user: Any, groups: list[str]) -> None:
    for name in groups:
        group = Backend.instance.get(models.Group, display_name=name)
        if group is None:
            group = models.Group(display_name=name, members=[user])
        else:
            group.members = [*group.members, user]
        Backend.instance.save(group)


def happen(app: Any, event: dict[str, str]) -> object:
    settings = app.config["CANAILLE_OIDC"]
    if event["what"] == "rotate":
        key = jwk.RSAKey.generate_key(2048, auto_kid=True)
        settings["ACTIVE_JWKS"] = [key.as_dict(private=True)]
        return {"keys": settings["ACTIVE_JWKS"]}
    user = Backend.instance.get(models.User, user_name=event["who"])
    if event["what"] == "lock":
        user.lock_date = datetime.datetime.now(datetime.UTC)
    elif event["what"] == "leave":
        for group in list(user.groups):
            group.members = [member for member in group.members if member.user_name != user.user_name]
            Backend.instance.save(group)
        return {"done": event["what"]}
    Backend.instance.save(user)
    return {"done": event["what"]}


main()
