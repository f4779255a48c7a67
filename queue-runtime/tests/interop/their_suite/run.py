"""Runs the tests that the source package of `azure-storage-queue` ships, on the account of `CONNECTION_STRING`.

Prints what came of them, as JSON. `left_out.txt` names those that cannot pass; one of them that does is a failure.
"""

import contextlib
import functools
import json
import logging
import os
import sys
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from azure.core.pipeline.transport import AioHttpTransport, RequestsTransport

FOLDER = Path(__file__).parent
TESTS = Path(sys.prefix, f"azure_storage_queue-{version('azure-storage-queue')}", "tests")

parts = dict(part.split("=", 1) for part in os.environ["CONNECTION_STRING"].split(";"))
account, server = parts["AccountName"], urlsplit(parts["QueueEndpoint"])


def led_to_the_server(send):
    """Sends what is meant for the account's host in Azure to the server, which knows the account by the host, too."""
    hosts = {
        f"{name}.queue.core.windows.net": f"{name}.queue.localhost:{server.port}"
        for name in (account, f"{account}-secondary")
    }

    @functools.wraps(send)
    def led(self, request, **options):
        url = urlsplit(request.url)
        # A retry goes there already.
        if url.netloc != server.netloc:
            # A test that asks another host fails, and nothing leaves the machine.
            request.headers["Host"] = hosts[url.netloc]
            request.url = url._replace(scheme=server.scheme, netloc=server.netloc).geturl()
        return send(self, request, **options)

    return led


class Report:
    """Leaves tests out, and keeps what came of the others."""

    def __init__(self):
        lines = (FOLDER / "left_out.txt").read_text().splitlines()
        self.left_out = dict(line.split(maxsplit=1) for line in lines)
        self.told = {"passed": 0, "left out": 0, "failed": []}

    def pytest_collection_modifyitems(self, items):
        for item in items:
            if reason := self.left_out.pop(item.nodeid, None):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
        self.told["failed"] += [f"{name} is no test" for name in self.left_out]

    def pytest_runtest_logreport(self, report):
        if hasattr(report, "wasxfail"):
            self.told["left out"] += 1
        elif not report.passed:
            # Also a test that skips itself: the list says which are left out.
            self.told["failed"].append(f"{report.nodeid} ({report.when}, {report.outcome})")
        elif report.when == "call":
            self.told["passed"] += 1

    def pytest_collectreport(self, report):
        if not report.passed:
            self.told["failed"].append(f"{report.nodeid} (collection)")


def main():
    if not TESTS.is_dir():
        sys.exit(f"no tests at {TESTS}: unpack the source package there, as `cargo xtask test` does")
    os.environ["STORAGE_ACCOUNT_NAME"] = account
    os.environ["STORAGE_ACCOUNT_KEY"] = parts["AccountKey"]
    for transport in (RequestsTransport, AioHttpTransport):
        transport.send = led_to_the_server(transport.send)
    # Some tests leave clients open.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    sys.path.insert(0, str(FOLDER))
    report = Report()
    options = ["--rootdir", str(TESTS), "-p", "no:cacheprovider", "-W", "ignore", "-q", "--tb=short"]
    with contextlib.redirect_stdout(sys.stderr):
        ended = pytest.main([*options, str(TESTS)], plugins=[report])
    if ended not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        report.told["failed"].append(f"pytest: {ended!r}")
    print(json.dumps(report.told))


if __name__ == "__main__":
    main()
