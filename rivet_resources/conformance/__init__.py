"""What packages' engines, destinations, formats, steps and checks promise, as checks for their own tests.

A check takes the thing and raises `PromiseBroken` with the sentence that does not hold. Belongs here: promises that
exports rely on, without pytest, so that any test can run them. Not here: what single things do besides.

    @pytest.mark.parametrize("promise", DESTINATION_PROMISES, ids=lambda each: each.__name__)
    def test_ftp_keeps(promise, tmp_path):
        promise(Ftp(host="localhost", path=uuid4().hex), tmp_path)
"""

from rivet_resources.conformance.checks import CHECK_PROMISES
from rivet_resources.conformance.clock import FakeClock, fake_clock
from rivet_resources.conformance.destinations import DESTINATION_PROMISES
from rivet_resources.conformance.engines import ENGINE_PROMISES
from rivet_resources.conformance.formats import FORMAT_PROMISES
from rivet_resources.conformance.lines import Proxy, listening, proxied
from rivet_resources.conformance.outages import OUTAGE_PROMISES
from rivet_resources.conformance.promises import PromiseBroken
from rivet_resources.conformance.steps import STEP_PROMISES

__all__ = [
    "CHECK_PROMISES", "DESTINATION_PROMISES", "ENGINE_PROMISES", "FORMAT_PROMISES", "OUTAGE_PROMISES", "STEP_PROMISES",
    "FakeClock", "PromiseBroken", "Proxy", "fake_clock", "listening", "proxied",
]  # fmt: skip
