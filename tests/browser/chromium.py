"""Debian's Chromium, driven without a window: pages from files, at the widths and in the colours that people have."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.support.wait import WebDriverWait

PROGRAMS: Final = ("chromium", "chromedriver")
LAPTOP: Final = (1280, 800)
PHONE: Final = (390, 844)

Colours = Literal["light", "dark"]


def missing() -> list[str]:
    """Say what is not here of what the tests in a browser need."""
    return [f"no {name} on PATH" for name in PROGRAMS if shutil.which(name) is None]


class Browser:
    """Hold a browser with one page."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(
        self, file: Path, size: tuple[int, int] = LAPTOP, colours: Colours = "light", *, motion: bool = False
    ) -> None:
        """Open a page from a file, and wait until it has drawn itself or has said why not."""
        self.resize(size)
        features = [
            {"name": "prefers-color-scheme", "value": colours},
            {"name": "prefers-reduced-motion", "value": "no-preference" if motion else "reduce"},
        ]
        self.cdp("Emulation.setEmulatedMedia", features=features)
        self.driver.get(file.as_uri())
        self.wait("return document.documentElement.dataset.ready !== undefined")

    def resize(self, size: tuple[int, int]) -> None:
        """Give the page so many pixels."""
        width, height = size
        self.cdp(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def wait(self, script: str) -> None:
        """Wait until a script says true."""
        self.until(lambda: bool(self.run(script)))

    def until(self, true: Callable[[], bool]) -> None:
        """Wait until a function says true."""
        WebDriverWait(self.driver, 30, poll_frequency=0.05).until(lambda _: true())

    def run(self, script: str, *words: object) -> Any:
        """Run a script in the page and return what it returns."""
        return self.driver.execute_script(script, *words)

    def cdp(self, command: str, **parameters: object) -> Any:
        """Send a command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(command, parameters)

    def all(self, selector: str) -> list[Any]:
        """Return the elements of a selector."""
        return list(self.driver.find_elements("css selector", selector))

    def one(self, selector: str) -> Any:
        """Return the first element of a selector."""
        return self.driver.find_element("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        """Return what is read in the elements of a selector."""
        return list(
            self.run("return [...document.querySelectorAll(arguments[0])].map((each) => each.innerText)", selector)
        )

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def complaints(self) -> list[str]:
        """Return what the console says since the last call: errors, and what the policy of the page forbade."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]

    def picture(self, *, whole: bool = False) -> bytes:
        """Take a picture of what is seen, or of the whole page, as PNG."""
        return base64.b64decode(
            self.cdp("Page.captureScreenshot", captureBeyondViewport=whole, **self._clip(whole))["data"]
        )

    def _clip(self, whole: bool) -> dict[str, object]:
        if not whole:
            return {}
        width, height = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        return {"clip": {"x": 0, "y": 0, "width": width, "height": min(height, 12_000), "scale": 1}}


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start a browser with a profile of its own, and end it."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for word in ("--headless=new", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.add_argument(f"--user-data-dir={profile}")
    # Nothing of a browser goes out of this machine.
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")
    options.add_argument("--disable-background-networking")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
