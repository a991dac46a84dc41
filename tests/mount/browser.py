# SPDX-License-Identifier: Apache-2.0
"""Opens a page in headless Chromium, and looks at it.

    browser.py [--size WIDTHxHEIGHT] [--dark] [--wait EXPRESSION] [--picture FILE] URL [EXPRESSION]...

Waits until the expression of JavaScript after --wait is true. Then each of the others must be; an expression
that starts with "print " is printed instead. The picture is of the window. Fails also where the console has
an error or a warning, a request fails, or one goes to another address than the page's.

It speaks the DevTools protocol over two pipes: JSON, each message ends in a NUL byte.
"""
import argparse
import base64
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from urllib.parse import urlsplit

SECONDS = 60
PROGRAMS = ("chromium-headless-shell", "chromium")


class Browser:
    def __init__(self, folder):
        to_read, to_write = os.pipe()
        from_read, from_write = os.pipe()

        def place_pipes():
            # 3 and 4 may be ends of these pipes themselves
            reads, writes = os.dup(to_read), os.dup(from_write)
            os.dup2(reads, 3)
            os.dup2(writes, 4)

        # Without a sandbox, as root has none. The page is the daemon's own.
        flags = ["--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--disable-lcd-text",
                 f"--user-data-dir={folder}"]
        program = next(p for d in os.environ["PATH"].split(":") for n in PROGRAMS if os.access(p := f"{d}/{n}", os.X_OK))
        self.process = subprocess.Popen([program, "--headless", *flags], preexec_fn=place_pipes, close_fds=False,
                                        start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=open(f"{folder}/chromium.log", "w"), env={**os.environ, "HOME": folder})
        os.close(to_read)
        os.close(from_write)
        self.to, self.source = to_write, from_read
        self.rest, self.number, self.session = b"", 0, None
        self.complaints, self.urls = [], []
        self.end = time.monotonic() + SECONDS

    def read_message(self):
        while b"\0" not in self.rest:
            if not select.select([self.source], [], [], max(0, self.end - time.monotonic()))[0]:
                sys.exit(f"the browser has said nothing that was waited for in {SECONDS} s")
            more = os.read(self.source, 1 << 20)
            if not more:
                sys.exit("the browser has ended")
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def note_event(self, method, p):
        if method == "Runtime.exceptionThrown":
            self.complaints.append(p["exceptionDetails"].get("exception", p["exceptionDetails"]).get("description"))
        elif method == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
            self.complaints.append([a.get("value") for a in p["args"]])
        elif method == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            self.complaints.append(p["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.urls.append(p["request"]["url"])
        elif method == "Network.loadingFailed":
            self.complaints.append(p["errorText"])

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read_message()
            if answer.get("id") == self.number:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]
            self.note_event(answer.get("method"), answer.get("params"))

    def value_of(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            sys.exit(f"{expression}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    def open_page(self, url, width, height, dark):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Page.navigate", url=url)

    def wait_for(self, expression):
        while not self.value_of(expression):
            if time.monotonic() > self.end:
                sys.exit(f"{expression} has not come true in {SECONDS} s; the page: {self.value_of('document.body.innerText')}")
            time.sleep(0.1)

    # Its processes share a group, and write to the folder as long as they live.
    def close(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        end = time.monotonic() + 10
        while time.monotonic() < end:
            try:
                os.killpg(self.process.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.02)

    def take_picture(self, path):
        image = self.call("Page.captureScreenshot", format="png")
        with open(path, "wb") as f:
            f.write(base64.b64decode(image["data"]))


def look(browser, a):
    width, height = (int(n) for n in a.size.split("x"))
    failed = []
    browser.open_page(a.url, width, height, a.dark)
    if a.wait:
        browser.wait_for(a.wait)
    for expression in a.expressions:
        value = browser.value_of(expression.removeprefix("print "))
        if expression.startswith("print "):
            print(value)
        elif value is not True:
            failed.append(f"{expression} is {value}")
    if a.picture:
        browser.take_picture(a.picture)
    outside = [u for u in browser.urls if not u.startswith("data:") and urlsplit(u).netloc != urlsplit(a.url).netloc]
    failed += [f"the browser complains: {c}" for c in browser.complaints] + [f"asked for {u}" for u in outside]
    if failed:
        sys.exit("\n".join(failed) + "\nthe page: " + str(browser.value_of("document.body.innerText")))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="1280x900")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--wait")
    parser.add_argument("--picture")
    parser.add_argument("url")
    parser.add_argument("expressions", nargs="*")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weft-test.") as folder:
        browser = Browser(folder)
        try:
            look(browser, a)
        finally:
            browser.close()


main()
