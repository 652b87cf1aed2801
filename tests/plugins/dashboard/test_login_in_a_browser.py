"""Users of the cluster log in to the dashboard, and change what their rules let them."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from insync.replication.client.threads.blocking import BlockingAdmin
from tests.processes import STEADY, cluster

from .browser import browser, complaints, confirm, dashboard, fill, find_browser, press, shows

pytest.importorskip("nicegui")
pytestmark = pytest.mark.browser

NAME = "Name of a user of the cluster"


def log_in(page: WebDriver, url: str, name: str, password: str) -> None:
    page.get(url)
    page.find_element(By.ID, "name").send_keys(name)
    page.find_element(By.ID, "password").send_keys(password)
    page.find_element(By.TAG_NAME, "button").click()


def test_users_see_and_change_what_their_rules_let_them(tmp_path: Path) -> None:
    find_browser()
    with cluster(tmp_path, 1, *STEADY) as (node,), BlockingAdmin(node.endpoint) as admin:
        admin.create_user("ops", "ops-password", allow=["consume", "produce", "admin"])
        admin.create_user("looker", "looker-password", allow=["consume"])
        admin.create_user("writer", "writer-password", allow=["produce"])
        options = ("--allow-changes", "--login")
        with dashboard(node.endpoint, *options) as url, browser(tmp_path / "browser") as page:
            log_in(page, url, "ops", "looker-password")
            shows(page, "Unknown user, or wrong password.")
            log_in(page, url, "<b>nobody</b>", "x")
            shows(page, "Unknown user, or wrong password.")
            log_in(page, url, "writer", "writer-password")
            shows(page, "User 'writer' may not consume")
            log_in(page, url, "looker", "looker-password")
            shows(page, "Log out (looker)")
            page.get(url + "do")
            shows(page, "looker may read and not change")
            assert not page.find_elements(By.CSS_SELECTOR, "[role=group]"), "no form"
            press(page, "Log out (looker)")
            shows(page, NAME)
            log_in(page, url, "ops", "ops-password")
            # A page that is asked for now would break the login off.
            shows(page, "Log out (ops)")
            page.get(url + "do")
            fill(page, "Name", "one", "Create a topic")
            fill(page, "Replicas", "1", "Create a topic")
            press(page, "Plan: create")
            shows(page, "3 partitions with 1 replica each")
            admin.alter_user("ops", allow=["consume", "admin"])
            shows(page, NAME)
            assert admin.list_topics() == []
            log_in(page, url, "ops", "ops-password")
            shows(page, "Log out (ops)")
            page.get(url + "do")
            fill(page, "Name", "one", "Create a topic")
            fill(page, "Replicas", "1", "Create a topic")
            assert not page.find_elements(By.CSS_SELECTOR, "[aria-label='Produce a record']")
            press(page, "Plan: create")
            confirm(page)
            shows(page, "topic one was created")
            press(page, "Plan: create")
            shows(page, "there is a topic 'one' already")
            admin.delete_user("ops")
            shows(page, NAME)  # by itself, within seconds
            assert "one" not in page.page_source, "nor is anything left of what was shown"
            page.get(url)
            shows(page, NAME)
            log_in(page, url, "looker", "looker-password")
            shows(page, "Log out (looker)")
            first = page.current_window_handle
            page.switch_to.new_window("tab")
            page.get(url)
            shows(page, "Log out (looker)")
            press(page, "Log out (looker)")
            shows(page, NAME)
            page.switch_to.window(first)
            shows(page, NAME)
            # Of pages whose sessions have ended the browser says that nobody lets them in, or hears them.
            ended = ("401", "403", "WebSocket is already in CLOSING or CLOSED state")
            told = [each for each in complaints(page) if not any(known in each for known in ended)]
            assert told == []
