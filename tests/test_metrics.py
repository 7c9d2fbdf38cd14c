# SPDX-License-Identifier: Apache-2.0
"""Metrics: families of one's own through the real registry, and their text taken apart."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tritonffi import (
    ClosedError,
    InvalidArgumentError,
    MetricFamily,
    MetricFamilySamples,
    MetricKind,
    MetricSample,
    Server,
    UnsupportedError,
)

COUNTER, GAUGE, HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

numbers = itertools.count()


@pytest.fixture
def name():
    """A name of its own for each test: a name keeps its kind for as long as the process lives."""
    return f"test_{next(numbers)}_total"


def test_a_counter_counts(server, name):
    """Up, by any amount; it stands in the text with its labels and its description."""
    with MetricFamily(COUNTER, name, "What is counted") as family:
        metric = family.metric(page="start")
        assert metric.value() == 0.0
        metric.increment()
        metric.increment(2.5)
        metric.increment(np.float32(0.5))
        assert metric.value() == 4.0
        assert (family.kind, metric.kind) == (COUNTER, COUNTER)
        assert metric.labels == {"page": "start"}
        assert metric.family is family
        assert f'{name}{{page="start"}} 4\n' in server.metrics()
        assert server.metrics_dict()[name] == MetricFamilySamples(
            name,
            "counter",
            "What is counted",
            (MetricSample(name, {"page": "start"}, 4.0),),
        )
        with pytest.raises(InvalidArgumentError, match="monotonically"):
            metric.increment(-1)
        with pytest.raises(UnsupportedError, match=rf"metric '{name}' .*does not support Set"):
            metric.set(1)
        with pytest.raises(UnsupportedError):
            metric.observe(1)
        assert metric.value() == 4.0
    assert name not in server.metrics()


def test_a_gauge_is_set_and_moved(server, name):
    """Also to what is no number."""
    with MetricFamily(GAUGE, name) as family:
        metric = family.metric()
        for value in (0.1, -1e300, 5e-324, 2.0**53, math.inf, -math.inf):
            metric.set(value)
            assert metric.value() == value
            assert server.metrics_dict()[name].value() == value
        metric.set(math.nan)
        assert math.isnan(metric.value())
        assert math.isnan(server.metrics_dict()[name].value())
        metric.set(5)
        metric.increment(-7.5)
        assert metric.value() == -2.5
        assert server.metrics_dict()[name].kind == "gauge"
        with pytest.raises(UnsupportedError):
            metric.observe(1)


def test_a_histogram_sorts_into_buckets(server, name):
    """Cumulatively; a value on a bound belongs below it."""
    with MetricFamily(HISTOGRAM, name, "Seconds", buckets=[0.5, 1, 10]) as family:
        assert family.buckets == (0.5, 1.0, 10.0)
        metric = family.metric(model="m")
        for value in (0.25, 0.5, 0.75, 5, 50):
            metric.observe(value)
        assert metric.kind is HISTOGRAM
        parsed = server.metrics_dict()[name]
        assert parsed.kind == "histogram"
        assert parsed.value(suffix="_count") == 5
        assert parsed.value({"model": "m"}, suffix="_sum") == 56.5
        buckets = {s.labels["le"]: s.value for s in parsed.samples if "le" in s.labels}
        assert buckets == {"0.5": 2, "1": 3, "10": 4, "+Inf": 5}
        assert parsed.value({"le": "10"}, suffix="_bucket") == 4
        with pytest.raises(KeyError, match="say which with suffix='_bucket' or '_sum' or '_count'"):
            parsed.value({"model": "m"})
        for call in (metric.value, metric.increment, lambda: metric.set(1)):
            with pytest.raises(UnsupportedError, match="does not support"):
                call()
        with pytest.raises(InvalidArgumentError, match="NaN cannot be counted"):
            metric.observe(math.nan)
        with pytest.raises(InvalidArgumentError, match="'le' cannot be the name of a label"):
            family.metric(le="1")
        assert server.metrics_dict()[name].value(suffix="_count") == 5


def test_the_same_labels_are_the_same_metric(name):
    """However they are said; others are another one."""
    with MetricFamily(COUNTER, name) as family:
        metric = family.metric({"a": "1", "b": "2"})
        assert family.metric(b="2", a="1") is metric
        assert family.metric({"a": "1"}, b="2") is metric
        other = family.metric({"a": "1", "b": "3"})
        metric.increment()
        assert (metric.value(), other.value(), family.metric().value()) == (1.0, 0.0, 0.0)


def test_families_of_one_name_share(server, name):
    """The text has one family; each handle counts on until it is closed, in any order."""
    first = MetricFamily(COUNTER, name, "first")
    second = MetricFamily(COUNTER, name, "second")
    first.metric(a="1").increment(1)
    second.metric(a="1").increment(2)
    second.metric(a="2").increment(4)
    assert first.metric(a="1").value() == 3.0
    first.close()
    with pytest.raises(ClosedError):
        first.metric(a="1")
    parsed = server.metrics_dict()[name]
    assert parsed.description == "first"
    assert parsed.value({"a": "1"}) == 3.0
    second.metric(a="1").increment(2)
    assert server.metrics_dict()[name].value({"a": "1"}) == 5.0
    assert server.metrics_dict()[name].value({"a": "2"}) == 4.0
    third = MetricFamily(COUNTER, name)
    third.metric(a="1").close()
    assert second.metric(a="1").value() == 5.0
    second.close()
    assert name not in server.metrics()
    third.metric(a="1").increment()
    assert server.metrics_dict()[name].value() == 1.0
    third.close()
    assert name not in server.metrics()


def test_families_of_one_name_are_of_one_kind(server, name):
    """With the same buckets, for Triton would silently take the first's."""
    with MetricFamily(HISTOGRAM, name, buckets=[1, 2]):
        with pytest.raises(InvalidArgumentError, match=f"metric '{name}': there is one with other"):
            MetricFamily(HISTOGRAM, name, buckets=[1, 3])
        with pytest.raises(InvalidArgumentError, match=f"metric '{name}': .*a HISTOGRAM already"):
            MetricFamily(COUNTER, name)
        MetricFamily(HISTOGRAM, name, buckets=[1.0, 2.0]).close()


def test_a_name_keeps_its_kind(name):
    """Even when the family is closed: Triton never forgets one."""
    MetricFamily(COUNTER, name).close()
    with pytest.raises(InvalidArgumentError, match=f"metric '{name}': .*a COUNTER already"):
        MetricFamily(GAUGE, name)
    again = MetricFamily(COUNTER, name)
    again.metric().increment()
    assert again.metric().value() == 1.0
    again.close()


@pytest.mark.parametrize("first", ["family", "metric"])
def test_close_in_any_order(server, name, first):
    """A family closes its metrics, and a metric leaves its family; twice is no error."""
    family = MetricFamily(GAUGE, name)
    metric, other = family.metric(n="1"), family.metric(n="2")
    assert not family.closed
    assert repr(family) == f"<MetricFamily '{name}', open>"
    assert repr(metric) == f"<Metric '{name}' {{'n': '1'}}, open>"
    if first == "metric":
        metric.close()
        assert not other.closed
        assert f'{name}{{n="1"}}' not in server.metrics()
        assert family.metric(n="1") is not metric
    family.close()
    metric.close()
    family.close()
    assert (family.closed, metric.closed, other.closed) == (True, True, True)
    assert repr(family) == f"<MetricFamily '{name}', closed>"
    assert repr(other) == f"<Metric '{name}' {{'n': '2'}}, closed>"
    calls = [
        metric.value,
        metric.increment,
        lambda: metric.set(1),
        lambda: metric.observe(1),
        lambda: metric.kind,
        family.metric,
        lambda: family.kind,
    ]
    for call in calls:
        with pytest.raises(ClosedError, match=f"metric '{name}'.* is closed"):
            call()


def test_a_metric_in_a_with_block(server, name):
    """It leaves the text at the end of it, and may come again from 0."""
    with MetricFamily(COUNTER, name) as family:
        with family.metric(x="1") as metric:
            metric.increment()
            assert name in server.metrics()
        assert name not in server.metrics()
        assert family.metric(x="1").value() == 0.0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((COUNTER, "a b"), InvalidArgumentError),
        ((COUNTER, ""), InvalidArgumentError),
        ((COUNTER, "9lives"), InvalidArgumentError),
        ((COUNTER, "__own"), InvalidArgumentError),
        ((COUNTER, "ünder"), InvalidArgumentError),
        ((COUNTER, "nv_inference_count"), InvalidArgumentError),
        ((COUNTER, "a\n"), InvalidArgumentError),
        ((COUNTER, "a\0b"), ValueError),
        ((COUNTER, b"name"), TypeError),
        ((COUNTER, None), TypeError),
        ((COUNTER, "name", None), TypeError),
        ((0, "name"), TypeError),
        (("counter", "name"), TypeError),
    ],
)
def test_wrong_families_are_refused(server, arguments, error):
    """Before Triton sees them, which would crash over some."""
    with pytest.raises(error):
        MetricFamily(*arguments)


@pytest.mark.parametrize(
    ("kind", "buckets", "error"),
    [
        (HISTOGRAM, [], InvalidArgumentError),
        (HISTOGRAM, [2, 1], InvalidArgumentError),
        (HISTOGRAM, [1, 1], InvalidArgumentError),
        (HISTOGRAM, [math.nan], InvalidArgumentError),
        (HISTOGRAM, [1, math.inf], InvalidArgumentError),
        (HISTOGRAM, ["1"], TypeError),
        (HISTOGRAM, [10**400], InvalidArgumentError),
        (COUNTER, [1], InvalidArgumentError),
        (GAUGE, [1], InvalidArgumentError),
    ],
)
def test_wrong_buckets_are_refused(server, name, kind, buckets, error):
    """Bounds ascend and are finite, and only histograms have them."""
    with pytest.raises(error, match=f"metric '{name}'"):
        MetricFamily(kind, name, buckets=buckets)


@pytest.mark.parametrize(
    ("labels", "error"),
    [
        ({"a b": "1"}, InvalidArgumentError),
        ({"": "1"}, InvalidArgumentError),
        ({"__a": "1"}, InvalidArgumentError),
        ({"a:b": "1"}, InvalidArgumentError),
        ({"a": 1}, TypeError),
        ({"a": None}, TypeError),
        ({1: "a"}, TypeError),
        ({"a": "x\0y"}, ValueError),
        ([("a", "1")], TypeError),
    ],
)
def test_wrong_labels_are_refused(server, name, labels, error):
    """And nothing is made of them."""
    with MetricFamily(COUNTER, name) as family:
        with pytest.raises(error):
            family.metric(labels)
        assert name not in server.metrics()


@pytest.mark.parametrize("value", ["1", None, True, [1.0]])
def test_what_is_no_number_is_refused(name, server, value):
    """Text and bools are mistakes."""
    with MetricFamily(GAUGE, name) as family:
        metric = family.metric()
        for call in (metric.increment, metric.set, metric.observe):
            with pytest.raises(TypeError, match="must be a number"):
                call(value)
        with pytest.raises(InvalidArgumentError, match="does not fit"):
            metric.set(10**400)
        with pytest.raises(InvalidArgumentError, match="NaN"):
            metric.increment(math.nan)


def test_many_threads_count_exactly(name, server):
    """Also while metrics of the family are made and closed."""
    with MetricFamily(COUNTER, name) as family:

        def work():
            for i in range(500):
                family.metric(all="1").increment()
                family.metric(some=str(i % 7)).close()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert family.metric(all="1").value() == 2000.0


def test_the_registry_belongs_to_the_process(repository, backend_directory, name):
    """A family is there before a server is, in the text of each, and after it."""
    family = MetricFamily(COUNTER, name)
    family.metric().increment()
    for _ in range(2):
        with Server() as server:
            assert server.metrics_dict()[name].value() >= 1
            family.metric().increment()
    assert family.metric().value() == 3.0
    family.close()


def test_before_a_library_is_loaded_there_are_no_metrics():
    """The error says so; nothing crashes, and an open family at exit is harmless."""
    code = """
import tritonffi
try:
    tritonffi.MetricFamily(tritonffi.MetricKind.COUNTER, "early")
except tritonffi.UnsupportedError as error:
    print(error)
try:
    tritonffi.Trace()
except tritonffi.UnsupportedError as error:
    print(error)
with tritonffi.Server() as server:
    family = tritonffi.MetricFamily(tritonffi.MetricKind.COUNTER, "early")
    family.metric(a="b").increment()
    trace = tritonffi.Trace()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    first, second = done.stdout.splitlines()
    assert first.startswith("metric 'early': ")
    assert second.startswith("a trace: ")


def test_tritons_own_metrics_are_numbers(server, echo):
    """Each inference counts one, failures by their reason."""
    labels = {"model": "echo", "version": "1"}

    def read():
        families = server.metrics_dict()
        failures = families["nv_inference_request_failure"]
        return (
            families["nv_inference_count"].value(labels),
            failures.value({**labels, "reason": "BACKEND"}),
            families["nv_inference_request_duration_us"].value(labels),
        )

    before = read()
    echo.infer({"INPUT0": [1.0]})
    after = read()
    assert (after[0] - before[0], after[1] - before[1]) == (1, 0)
    assert after[2] >= before[2]
    families = server.metrics_dict()
    assert all(family.name == key for key, family in families.items())
    assert families["nv_inference_count"].description.startswith("Number of inferences performed")
    assert families["nv_inference_pending_request_count"].kind == "gauge"
    with pytest.raises(
        InvalidArgumentError, match=r"'nv_inference_request_failure' has \d+ values"
    ):
        families["nv_inference_request_failure"].value(labels)
    with pytest.raises(KeyError, match="no value with labels"):
        families["nv_inference_count"].value({"model": "no_such_model"})


text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    description=text,
    labels=st.dictionaries(st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,5}", fullmatch=True), text),
    value=st.floats(-1e308, 1e308) | st.sampled_from([math.nan, math.inf, -math.inf]),
)
def test_what_goes_in_comes_out(server, description, labels, value):
    """Any description, labels and value: through Triton's text and back."""
    name = f"property_{next(numbers)}"
    with MetricFamily(GAUGE, name, description) as family:
        family.metric(labels).set(value)
        parsed = server.metrics_dict()[name]
        assert parsed.description == description
        (sample,) = parsed.samples
        assert dict(sample.labels) == labels
        assert sample.value == pytest.approx(value, rel=1e-15, abs=0, nan_ok=True)
