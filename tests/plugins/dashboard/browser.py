"""A real browser without a window, and the dashboard as users start it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement

from tests.requires import missing

PATIENCE = 30.0


COMMAND = (sys.executable, "-m", "insync")


@attrs.frozen
class Dashboard:
    url: str
    pid: int


@contextmanager
def dashboard(servers: str, *options: str) -> Iterator[str]:
    """Its address; ended by its id."""
    with dashboard_process(servers, *options) as started:
        yield started.url


@contextmanager
def dashboard_process(servers: str, *options: str, command: Sequence[str] = COMMAND) -> Iterator[Dashboard]:
    """command: what stands in place of `insync`."""
    given = [*command, "dashboard", "--servers", servers, "--port", "0", "--json", *options]
    with subprocess.Popen(given, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, f"the dashboard ended with status {process.wait()}"
            yield Dashboard(json.loads(line)["url"], process.pid)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def find_browser() -> tuple[str, str]:
    """Debian's browser and its driver, by their paths."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        missing("no chromium and chromedriver on the path")
    return browser, driver


@contextmanager
def browser(folder: Path) -> Iterator[WebDriver]:
    path, driver = find_browser()
    options = webdriver.ChromeOptions()
    options.binary_location = path
    for each in ("--headless=new", "--disable-gpu", "--window-size=1200,1400", f"--user-data-dir={folder}"):
        options.add_argument(each)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield opened
    finally:
        opened.quit()


def until(holds: Callable[[], object], what: str, patience: float = PATIENCE) -> float:
    """Look until it holds; gives after how many seconds that was."""
    started = time.monotonic()
    while True:
        try:
            if holds():
                return time.monotonic() - started
        except (StaleElementReferenceException, WebDriverException):
            pass  # the page has been drawn again in between
        assert time.monotonic() - started < patience, f"not within {patience:g} s: {what}"
        time.sleep(0.05)  # between two looks at a page


def text_of(page: WebDriver) -> str:
    return page.find_element(By.TAG_NAME, "body").text


def shows(page: WebDriver, text: str, patience: float = PATIENCE) -> float:
    """Wait until the page shows a text; gives how long that took."""
    try:
        return until(lambda: text in text_of(page), text, patience)
    except AssertionError as error:
        raise AssertionError(f"{error}; the page shows: {text_of(page)}") from None


def reads(page: WebDriver, xpath: str) -> str:
    """The text of one element, once it stands still for as long as that takes: pages are drawn again and again."""
    found: list[str] = []
    until(lambda: found.append(page.find_element(By.XPATH, xpath).text) or True, xpath)  # type: ignore[func-returns-value]
    return found[-1]


def labelled(page: WebDriver, label: str, section: str = "") -> WebElement:
    """The field of that label, as soon as there is one; of several with the same, that in the group `section`."""
    within = f"//*[@role='group' and @aria-label='{section}']" if section else ""
    place = f"{within}//*[@aria-label={json.dumps(label)}][self::input or self::textarea]"
    until(lambda: page.find_element(By.XPATH, place), place)
    return page.find_element(By.XPATH, place)


def fill(page: WebDriver, label: str, text: str, section: str = "") -> None:
    field = labelled(page, label, section)
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(text)


def _unfold(page: WebDriver, label: str, section: str) -> WebElement:
    """The field of a list, with its options below it."""
    field = labelled(page, label, section)

    def unfolded() -> bool:
        if not page.find_elements(By.XPATH, "//*[@role='option']"):
            page.execute_script("arguments[0].scrollIntoView({block: 'center'})", field)
            field.click()
        try:
            # A second click on a list that is late would fold it again.
            until(lambda: page.find_elements(By.XPATH, "//*[@role='option']"), "an option", 5.0)
        except AssertionError:
            return False
        return True

    until(unfolded, f"the options of {label}")
    return field


def choose(page: WebDriver, label: str, option: str, section: str = "") -> None:
    """One option of a list, as with the mouse."""
    _unfold(page, label, section)
    entry = f"//*[@role='option'][normalize-space(.)={json.dumps(option)}]"
    until(lambda: page.find_element(By.XPATH, entry).is_displayed(), f"the option {option} of {label}")

    def chosen() -> bool:
        for each in page.find_elements(By.XPATH, entry):
            each.click()  # it may be moving still: then the list stays, and this comes again
        return not page.find_elements(By.XPATH, "//*[@role='option']")

    until(chosen, f"the choice of {option} of {label}")


def choose_all(page: WebDriver, label: str, options: Sequence[str], section: str = "") -> None:
    """Several options of a list of which one may choose several; it stays open until it is closed."""
    field = _unfold(page, label, section)
    for option in options:
        entry = f"//*[@role='option'][normalize-space(.)={json.dumps(option)}]"

        def clicked(entry: str = entry) -> bool:
            page.find_element(By.XPATH, entry).click()
            return True

        def chosen(entry: str = entry) -> bool:
            return bool(page.find_elements(By.XPATH, f"{entry}[@aria-selected='true']"))

        until(clicked, f"{option} of {label}")
        until(chosen, f"{option} of {label} to be chosen")
    field.send_keys(Keys.ESCAPE)
    until(lambda: not page.find_elements(By.XPATH, "//*[@role='option']"), f"the end of the list of {label}")


def press(page: WebDriver, text: str) -> None:
    """As with the mouse, as soon as there is such a button and it stands still.

    A dialog grows as it opens: what is pressed at one place and let go at another has not been clicked.
    """
    before = None

    def pressed() -> bool:
        nonlocal before
        button = page.find_element(By.XPATH, f"//button[normalize-space(.)={json.dumps(text)}]")
        page.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        last, before = before, button.rect
        if last != before:
            return False
        button.click()
        return True

    until(pressed, f"the button {text}")


def confirm(page: WebDriver, button: str = "Do it") -> None:
    """Answer a plan, and wait until its dialog is gone: the next one has the same buttons."""
    press(page, button)
    until(lambda: not page.find_elements(By.CSS_SELECTOR, ".q-dialog__inner"), "the end of the dialog")


def complaints(page: WebDriver) -> list[str]:
    """What the browser itself has to say of the pages: scripts that failed, what the policy refused."""
    return [
        entry["message"]
        for entry in page.get_log("browser")  # type: ignore[no-untyped-call]
        if entry["level"] == "SEVERE"
    ]
