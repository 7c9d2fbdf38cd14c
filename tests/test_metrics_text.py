# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text, taken apart: whatever may stand in it, and what may not."""

from __future__ import annotations

import math

import pytest

from tritonffi import InvalidArgumentError, MetricFamilySamples, MetricSample, parse_metrics


def test_the_format_is_read_in_full():
    """What Triton does not write, but others may: timestamps, summaries, no type, odd spaces."""
    parsed = parse_metrics(
        "# a comment\n"
        "#no comment of ours\n"
        "\n"
        "# TYPE s summary\n"
        '# HELP s back\\\\slash, new\\nline, \\other "quotes"\n'
        's{quantile="0.5"} 1.5e-3 1700000000000\n'
        "s_sum 2.\n"
        "s_count +3\n"
        "bare .5\n"
        'spaced { a = "1" , b="}, {" ,} -Inf -5 \n'.replace("spaced {", "spaced{")
        + "s_bucket NaN\n"
        "# TYPE empty counter\n"
    )
    assert list(parsed) == ["s", "bare", "spaced", "s_bucket", "empty"]
    assert parsed["s"].description == 'back\\slash, new\nline, \\other "quotes"'
    assert parsed["s"].kind == "summary"
    assert parsed["s"].samples == (
        MetricSample("s", {"quantile": "0.5"}, 0.0015, 1700000000000),
        MetricSample("s_sum", {}, 2.0),
        MetricSample("s_count", {}, 3.0),
    )
    assert parsed["bare"] == MetricFamilySamples("bare", samples=(MetricSample("bare", {}, 0.5),))
    (spaced,) = parsed["spaced"].samples
    assert (dict(spaced.labels), spaced.value) == ({"a": "1", "b": "}, {"}, -math.inf)
    assert spaced.timestamp_ms == -5
    assert math.isnan(parsed["s_bucket"].value())
    assert parsed["empty"] == MetricFamilySamples("empty", "counter")
    assert parse_metrics("") == {}
    assert parse_metrics("# TYPE c counter\r\n \tc 1\r\n")["c"].value() == 1.0


@pytest.mark.parametrize(
    "line",
    [
        "name",
        "name one",
        "name 1_0",
        "name 0x1",
        "name ١",  # noqa: RUF001 (a digit, but not of the format)
        "name 1 2 3",
        "name 1 1.5",
        "9name 1",
        "na-me 1",
        'name{a="1" 1',
        'name{a="1"b="2"} 1',
        'name{a="1",a="2"} 1',
        "name{a=1} 1",
        "name{a='1'} 1",
        'name{9="1"} 1',
        "name{,} 1",
        'name{a="1\\"} 1',
        "# TYPE name timer",
        "# TYPE name",
        "# TYPE before counter",
    ],
)
def test_what_is_not_of_the_format_is_refused(line):
    """With its number and its text."""
    with pytest.raises(InvalidArgumentError, match="metrics, line 2: ") as raised:
        parse_metrics(f"before 1\n{line}\nafter 1\n")
    assert repr(line) in str(raised.value)


HISTOGRAM = "# TYPE x histogram\nx_sum 2\nx_count 1\n"
GAUGE = '# TYPE x_count gauge\nx_count{a="b"} 7\n'


@pytest.mark.parametrize("text", [HISTOGRAM + GAUGE, GAUGE + HISTOGRAM])
def test_a_family_may_have_the_name_of_anothers_sample(text):
    """A sample belongs to the one that was described before it."""
    parsed = parse_metrics(text)
    assert parsed["x"].samples == (MetricSample("x_sum", {}, 2.0), MetricSample("x_count", {}, 1.0))
    assert parsed["x"].value(suffix="_count") == 1
    assert parsed["x_count"].samples == (MetricSample("x_count", {"a": "b"}, 7.0),)
    assert parsed["x_count"].value() == 7


def test_a_familys_samples_may_be_apart():
    """Those in the full name of one that is described are its own."""
    parsed = parse_metrics(f"{HISTOGRAM}# TYPE y gauge\ny 1\nx_count 2\n")
    assert [sample.value for sample in parsed["x"].samples] == [2, 1, 2]
    parsed = parse_metrics(f"{HISTOGRAM}{GAUGE}# TYPE y gauge\ny 1\nx_count 2\nx_sum 3\n")
    assert [sample.value for sample in parsed["x"].samples] == [2, 1, 3]
    assert [sample.value for sample in parsed["x_count"].samples] == [7, 2]


@pytest.mark.parametrize(
    "line", ['x {a="}"} 1', 'x{a="}"}1', 'x\t{a="}"}\t1\t', 'x { a = "}" , }1 ', ' x{a="}"} 1']
)
def test_blanks_around_labels_mean_nothing(line):
    """Prometheus' own parser does not ask for them, nor mind them."""
    assert parse_metrics(line)["x"].samples == (MetricSample("x", {"a": "}"}, 1.0),)


@pytest.mark.parametrize(
    "line",
    [
        "# TYPE x counter ",
        "#  TYPE x counter",
        "#TYPE x counter",
        "# TYPE\tx\t counter\t",
        " # TYPE x counter",
    ],
)
def test_blanks_around_kinds_mean_nothing(line):
    """The same."""
    assert parse_metrics(f"{line}\nx 1")["x"].kind == "counter"


def test_quotes_are_escaped_in_labels_only():
    """In a description a backslash before one is a backslash, as Triton writes it."""
    parsed = parse_metrics('# HELP x say \\"a\\\\b\\"\nx{a="say \\"a\\\\b\\""} Infinity\n')
    assert parsed["x"].description == 'say \\"a\\b\\"'
    assert parsed["x"].samples == (MetricSample("x", {"a": 'say "a\\b"'}, math.inf),)
