"""Users and roles on the page: added, changed and removed, with names that try to become code."""

import pytest

from tests.conftest import StartBroker
from tests.harness.broker_process import until
from tests.harness.chromium import Chromium
from tests.web.http_client import HttpClient
from tests.web.test_page import EVIL, click, fill, says, visit
from tests.web.test_users_api import SETTINGS, client, put

COUNT = "return document.querySelectorAll(arguments[0]).length"
SET = "const field = document.querySelector(`main [name=${arguments[0]}]`); field.value = arguments[1]"
TOLD = "return document.getElementById('told').innerText.includes(arguments[0])"


@pytest.mark.parametrize("store", ["sqlite"])
def test_users_and_roles(browser: Chromium, start_broker: StartBroker) -> None:
    node = start_broker(SETTINGS)
    api = HttpClient(node)
    visit(browser, api.url, "roles")
    says(browser, "There are no such roles.")
    fill(browser, "name", "pump")
    browser.run(SET, "new_rules", "topic write a\npattern read %c/#\n")
    click(browser, "Add", "main")
    browser.until(TOLD, "pump is added.")
    assert api.get("/role", name="pump")["rules"] == ["topic write a", "pattern read %c/#"]
    visit(browser, api.url, "users")
    says(browser, "There are no such users.")
    fill(browser, "name", EVIL)
    fill(browser, "new_password", "x")
    fill(browser, "new_roles", "pump")
    click(browser, "Add", "main")
    browser.until(TOLD, "is added.")
    says(browser, EVIL)
    user = api.get("/user", name=EVIL)
    assert user["roles"] == ["pump"] and user["credentials"] == "argon2id"
    browser.run(SET, "rules", f"topic read {EVIL}")
    browser.run("document.querySelector('main [name=unrestricted]').checked = false")
    click(browser, "Save", "main")
    browser.until(TOLD, "is changed.")
    assert api.get("/user", name=EVIL)["rules"] == [f"topic read {EVIL}"]
    fill(browser, "who", EVIL)
    fill(browser, "topic", "a")
    click(browser, "Check", "main")
    says(browser, "a rule allows it: topic write a (role pump)")
    assert api.ask("PATCH", "/user", {"disabled": True}, name=EVIL).status == 200
    click(browser, "Save", "main")
    browser.until(TOLD, "has changed since it was read")  # and nothing is overwritten
    assert api.get("/user", name=EVIL)["disabled"]
    click(browser, "Remove", "main")
    click(browser, "Remove", "dialog")
    browser.until(TOLD, "is removed.")
    assert api.get("/users")["items"] == []
    assert browser.run(COUNT, "img[src=x]") == 0
    put(api, "ada", roles=["pump"])
    with client(node, "ada") as ada:
        visit(browser, api.url, "users?search=ad")
        click(browser, "ada", "main")
        browser.until("return document.querySelector('main [name=disabled]')?.checked === false")
        browser.run("document.querySelector('main [name=disabled]').checked = true")
        click(browser, "Save", "main")
        assert ada.receive() is None
    until(lambda: api.get("/user", name="ada")["disabled"], "the user is disabled")
