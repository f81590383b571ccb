"""Orders with more public SSH keys than their seller opens a machine to."""

from __future__ import annotations

from api.cli.holding.reservation_view import left_out_words
from api.schemas.holding.reservation import ReservationForm
from tests.api.house import Home
from tests.contract.journey import KEYS

ORDER = {"offer_id": "h100-b", "nodes": 1}


async def test_a_seller_of_one_key_gets_the_one_of_who_orders_and_the_rest_is_told(home: Home) -> None:
    home.house.provider.most_keys = 1
    team = await home.team("research")
    for name, key, person in (("theirs", KEYS[1], None), ("mine", KEYS[0], "me")):
        wanted = {"public_key": key.line, "name": name, "person": person}
        assert (await team.post("/v1/ssh-keys", json=wanted)).status_code == 201
    row = (await team.post("/v1/reservations", json=ORDER)).json()
    assert [key.split()[0] for key in row["ssh_keys"]] == ["mine"]
    assert [key.split()[0] for key in row["ssh_keys_left_out"]] == ["theirs"]
    (order,) = home.house.provider.orders
    assert [key.name for key in order.keys] == ["mine"]
    words = left_out_words(ReservationForm.model_validate(row))
    assert words.startswith("fake opens a machine to 1 key of an order: mine SHA256:")
    assert "; not to theirs SHA256:" in words
    signed = await team.post("/signin", data={"key": team.headers["Authorization"].split()[1]})
    assert signed.status_code == 303
    page = (await team.get(f"/reservations/{row['reservation_id']}")).text
    assert "so it is not opened by" in page
    assert "theirs" in page


async def test_a_seller_of_all_keys_leaves_none_out(home: Home) -> None:
    team = await home.team("research")
    for name, key in (("one", KEYS[0]), ("other", KEYS[1])):
        await team.post("/v1/ssh-keys", json={"public_key": key.line, "name": name})
    row = (await team.post("/v1/reservations", json=ORDER)).json()
    assert len(row["ssh_keys"]) == 2
    assert row["ssh_keys_left_out"] == []
