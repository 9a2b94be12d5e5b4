"""Debian's Chromium without a window and without a network, driven by Selenium."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.actions.action_builder import ActionBuilder

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--hide-scrollbars", "--force-device-scale-factor=1", "--host-resolver-rules=MAP * 0.0.0.0"),
)
WAIT_SECONDS = 120
IDLE = "return Boolean(window.Bokeh?.documents?.length && Bokeh.documents.every(d => d.is_idle))"
MODEL = "Bokeh.documents[0].get_model_by_name(arguments[0])"


class Browser:
    """One window. Every page that it opens must fetch nothing and log no error."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        """Open a page and wait until Bokeh has drawn it."""
        self.driver.get(address)
        self.wait(lambda: self.run(IDLE))

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a function's body in the page."""
        return self.driver.execute_script(script, *arguments)

    def set(self, name: str, value: Any, what: str = "value") -> None:
        """Move a control, by the name of its model."""
        self.run(f"{MODEL}[arguments[2]] = arguments[1]", name, value, what)

    def text(self, name: str) -> str:
        """Return the HTML of a box of text."""
        return str(self.run(f"return Bokeh.index.find_one({MODEL}).markup_el.innerHTML", name))

    def data(self, name: str) -> dict[str, list[Any]]:
        """Return the columns of a source."""
        columns: dict[str, list[Any]] = self.run(
            f"const d = {MODEL}.data; return Object.fromEntries("
            "Object.entries(d).map(([k, v]) => [k, Array.from(v)]))",
            name,
        )
        return columns

    def wait(self, holds: Callable[[], Any]) -> None:
        """Wait until something holds."""
        end = time.monotonic() + WAIT_SECONDS
        while not holds():
            assert time.monotonic() < end, f"{holds} does not hold"
            time.sleep(0.1)

    def errors(self) -> list[str]:
        """Return what the console reports above a piece of news."""
        logged = self.driver.get_log("browser")
        return [entry["message"] for entry in logged if entry["level"] in {"SEVERE", "WARNING"}]

    def fetched(self) -> list[str]:
        """Return the addresses of all that the page fetched."""
        names: list[str] = self.run(
            "return performance.getEntriesByType('resource').map(e => e.name)"
        )
        return names

    def point(self, left: float, top: float) -> None:
        """Move the pointer to a place of the window, from beside it."""
        actions: Any = ActionBuilder(self.driver)
        actions.pointer_action.move_to_location(round(left) - 3, round(top))
        actions.pointer_action.move_to_location(round(left), round(top))
        actions.perform()

    def picture(self, path: Path, height: int) -> None:
        """Save the upper ``height`` pixels of the page as a PNG."""
        self.driver.set_window_size(1220, height)
        self.run("window.scrollTo(0, 0)")
        time.sleep(1)
        self.driver.save_screenshot(str(path))


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser, and end it."""
    options = ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    driver.set_script_timeout(WAIT_SECONDS)
    driver.set_page_load_timeout(WAIT_SECONDS)
    try:
        driver.set_window_size(1220, 2000)
        yield Browser(driver)
    finally:
        driver.quit()
