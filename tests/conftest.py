"""Let the tests import the project's tools and the book's extensions; say what is to be done about something missing."""
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "book/_ext")]


@pytest.fixture(scope="session")
def missing():
    """Skip for want of something outside the project, or fail where TRANSFORMER_COURSE_REQUIRE_BROWSER=1 says that it must be there."""
    def say(reason):
        if os.environ.get("TRANSFORMER_COURSE_REQUIRE_BROWSER") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return say


@pytest.fixture
def within(record_property):
    """`within(name, value, bound)`: say, record and assert a measured ratio."""
    def check(name, value, bound):
        print(f"{name}: {value:.2f} (at most {bound})")
        record_property(name, value)
        assert value <= bound
    return check
