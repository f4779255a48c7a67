"""Stands in for the package of this name, which the tests of `azure-storage-queue` import and PyPI does not have.

Nothing is recorded or played back: each test runs on the account that the environment names.
"""

import asyncio
import functools
import hashlib
import inspect
import io
import logging
import os
import random
import sys
import time
from collections import namedtuple

import pytest
from azure.core.credentials import AccessToken

# They import from these modules, too: all are this one.
for name in ("aio", "fake_credentials", "fake_credentials_async", "storage", "storage.aio"):
    sys.modules[f"{__name__}.{name}"] = sys.modules[__name__]

STORAGE_ACCOUNT_FAKE_KEY = "bm90IHRoZSBrZXk="
EnvironmentVariableOptions = namedtuple("EnvironmentVariableOptions", "hide_secrets")
Secret = namedtuple("Secret", "secret")


def EnvironmentVariableLoader(directory, *, options, **values):
    """Gives a test the values that the environment has under these names; runs those that are asynchronous."""

    def load(name):
        value = os.environ[name.upper()]
        return Secret(value) if name in options.hide_secrets else value

    def prepare(test):
        takes = inspect.signature(test).parameters.values()
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes)

        @functools.wraps(test)
        def run(self, **given):
            loaded = {name: load(name) for name in values} if takes_all else {}
            outcome = test(self, **given, **loaded)
            if inspect.isawaitable(outcome):
                asyncio.run(outcome)

        return run

    return prepare


def recorded_by_proxy(test):
    return test


recorded_by_proxy_async = recorded_by_proxy


@pytest.fixture(scope="session")
def test_proxy():
    """Nothing: requests go to the server."""


def sanitize_nothing(**rule):
    """What would be left out of a recording."""


add_general_regex_sanitizer = sanitize_nothing
add_header_regex_sanitizer = sanitize_nothing
add_oauth_response_sanitizer = sanitize_nothing
add_remove_header_sanitizer = sanitize_nothing
add_uri_regex_sanitizer = sanitize_nothing
add_uri_string_sanitizer = sanitize_nothing
set_custom_default_matcher = sanitize_nothing


class FakeTokenCredential:
    """A token that no server takes."""

    def get_token(self, *scopes, **options):
        return AccessToken("no-token", int(time.time()) + 3600)


class AsyncFakeCredential:
    async def get_token(self, *scopes, **options):
        return FakeTokenCredential().get_token()


class LogCaptured:
    """What the package logs meanwhile."""

    def __init__(self, test):
        self.text = io.StringIO()
        self.handler = logging.StreamHandler(self.text)
        self.logger = logging.getLogger("azure")

    def __enter__(self):
        self.level = self.logger.level
        self.logger.setLevel(logging.DEBUG)
        self.logger.addHandler(self.handler)
        return self

    def __exit__(self, *raised):
        self.logger.removeHandler(self.handler)
        self.logger.setLevel(self.level)

    def getvalue(self):
        return self.text.getvalue()


class StorageRecordedTestCase:
    """What the tests' classes inherit."""

    def setup_method(self):
        if hasattr(self, "setUp"):
            self.setUp()

    def account_url(self, account, service):
        return f"https://{account}.{service}.core.windows.net"

    def connection_string(self, account, key):
        return f"DefaultEndpointsProtocol=https;AccountName={account};AccountKey={key};EndpointSuffix=core.windows.net"

    def get_resource_name(self, prefix):
        """A name that no other test has."""
        of_test = hashlib.sha256(os.environ["PYTEST_CURRENT_TEST"].encode())
        return prefix + of_test.hexdigest()[:16]

    def get_credential(self, client, is_async=False):
        return AsyncFakeCredential() if is_async else FakeTokenCredential()

    def get_datetime_variable(self, variables, name, value):
        return value

    def get_random_bytes(self, size):
        # Some tests replace `os.urandom` by what asks it again.
        return random.randbytes(size)

    def generate_sas(self, generate, *arguments, **options):
        return generate(*arguments, **options)


AsyncStorageRecordedTestCase = StorageRecordedTestCase
