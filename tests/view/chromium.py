"""Debian's Chromium without a window and without a network, driven by Selenium."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.common.exceptions import TimeoutException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from urllib3.exceptions import ReadTimeoutError

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--hide-scrollbars", "--force-device-scale-factor=1", "--host-resolver-rules=MAP * 0.0.0.0"),
)
WAIT_SECONDS = 120
IDLE = "return Boolean(window.Bokeh?.documents?.length && Bokeh.documents.every(d => d.is_idle))"
MODEL = "Bokeh.documents[0].get_model_by_name(arguments[0])"

PLACE = """
const plot = Bokeh.documents[0].get_model_by_name(arguments[0])
const view = Bokeh.index.find_one(plot)
view.el.scrollIntoView({block: 'center'})
const box = view.canvas_view.el.getBoundingClientRect(), frame = view.frame
const x = frame.x_scale.compute(arguments[1]), y = frame.y_scale.compute(arguments[2])
return [box.left + x, box.top + y]
"""

COLORS = """
const plot = Bokeh.documents[0].get_model_by_name(arguments[0])
const {frame, canvas_view} = Bokeh.index.find_one(plot), {ctx, pixel_ratio} = canvas_view.primary
const {width, height} = ctx.canvas
const copy = new OffscreenCanvas(width, height).getContext('2d', {willReadFrequently: true})
copy.drawImage(ctx.canvas, 0, 0)
const {data} = copy.getImageData(0, 0, width, height)
return arguments[1].map(([x, y]) => {
  const left = Math.floor(frame.x_scale.compute(x) * pixel_ratio)
  const start = 4 * (left + width * Math.floor(frame.y_scale.compute(y) * pixel_ratio))
  const parts = Array.from(data.subarray(start, start + 3))
  return '#' + parts.map(part => part.toString(16).padStart(2, '0')).join('')
})
"""

TOOLTIPS = """
const found = []
const walk = node => {
  for (const child of node.querySelectorAll('*')) {
    if (child.classList.contains('bk-tooltip-content')) found.push(child.textContent)
    if (child.shadowRoot) walk(child.shadowRoot)
  }
}
walk(document)
return found.join(' ')
"""

MARK = """
const plot = Bokeh.documents[0].get_model_by_name(arguments[0])
const view = Bokeh.index.find_one(plot), time = Bokeh.documents[0].get_model_by_name('time')
const box = view.canvas_view.el.getBoundingClientRect()
const line = view.canvas_view.overlays_el.querySelector('div').getBoundingClientRect()
const share = time.value / time.end * arguments[1]
return [line.left - box.left, view.frame.x_scale.compute(share), line.height]
"""


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
            "const plain = v => v?.length === undefined || typeof v === 'string' ? v : "
            f"Array.from(v, plain); const d = {MODEL}.data; "
            "return Object.fromEntries(Object.entries(d).map(([k, v]) => [k, plain(v)]))",
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

    def place(self, plot: str, x: float, y: float) -> tuple[float, float]:
        """Scroll to a plot, and return where in the window it shows its data's (x, y)."""
        left, top = self.run(PLACE, plot, x, y)
        return left, top

    def colors(self, plot: str, places: list[tuple[float, float]]) -> list[str]:
        """Return the colors that a plot shows at places of its data."""
        found: list[str] = self.run(COLORS, plot, places)
        return found

    def tooltips(self) -> str:
        """Return the text of all tooltips."""
        return str(self.run(TOOLTIPS))

    def mark(self, plot: str, seconds: float) -> tuple[float, float, float]:
        """Return where a plot's line of the time is and should be, and how long it is."""
        drawn, wanted, height = self.run(MARK, plot, seconds)
        return drawn, wanted, height

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
    own_group = {"start_new_session": True}
    service = Service(str(shutil.which("chromedriver")), popen_kw=own_group)
    driver: Any = Chrome(options=options, service=service)
    driver.execute = _ending(driver)
    driver.set_script_timeout(WAIT_SECONDS)
    driver.set_page_load_timeout(WAIT_SECONDS)
    try:
        driver.set_window_size(1220, 2000)
        yield Browser(driver)
    finally:
        driver.quit()


def _ending(driver: Any) -> Callable[..., Any]:
    """Return a driver's ``execute``, by which a command without an answer kills the browser.

    Each later command then fails at once.
    """
    execute = driver.execute

    def execute_or_end(*command: Any) -> Any:
        try:
            return execute(*command)
        except (TimeoutException, ReadTimeoutError):
            os.killpg(driver.service.process.pid, signal.SIGKILL)
            raise

    return execute_or_end
