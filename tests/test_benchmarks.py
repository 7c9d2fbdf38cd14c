# SPDX-License-Identifier: Apache-2.0
"""The benchmarks: what they do with figures, and one small run, so that they do not rot."""

import dataclasses
import json
import logging
import sys
import types
from pathlib import Path

import pytest

# Last: the package that is tested is the installed one.
sys.path.append(str(Path(__file__).parent.parent))

from benchmarks import __main__ as command
from benchmarks import _measure, _results
from benchmarks.__main__ import begin, main, run
from benchmarks._common import Options
from benchmarks._compare import compare
from benchmarks._load import Load, page_aligned
from benchmarks._measure import ContenderError, Entry, Goal, NotComparableError, Outcome, Series
from benchmarks._report import report
from benchmarks._results import Results, ResultsError
from benchmarks._tables import goal_table, markdown_table, outcome_table


def series(contender, *values, session="one", **case):
    """Make a series of rounds with these times."""
    return Series(session, case or {"bytes": 4}, contender, [{"us": value} for value in values])


@pytest.fixture
def results():
    """Results of a run with one outcome: ours is 1.5 times the base."""
    outcome = Outcome("Times", "C", [series("C", 2.0, 4.0, 8.0), series("ours", 3.0, 6.0, 8.0)])
    outcome.goals.append(Goal("ours, times C", 1.5, 1.2))
    settings = {"rounds": 3.0, "seconds_per_round": 0.1}
    return Results("2026-01-01 00:00:00", False, {"cpu": "a"}, settings, {"times": outcome})


def test_a_ratio_is_the_median_of_the_ratios_of_the_rounds():
    """Not the ratio of the medians: what disturbs one round falls on both of its parts."""
    assert _measure.ratio(series("ours", 3.0, 60.0, 8.0), series("C", 2.0, 40.0, 8.0)) == 1.5
    assert _measure.difference(series("ours", 3.0, 60.0, 8.0), series("C", 2.0, 40.0, 8.0)) == 1.0


def test_there_is_no_ratio_of_what_was_not_measured_in_the_same_run():
    """The two did not take turns, so the machine may have been another one."""
    with pytest.raises(NotComparableError, match=r"ours.*C.*not measured in the same run"):
        _measure.ratio(series("ours", 3.0), series("C", 2.0, session="another"))
    outcome = Outcome("", "C", [series("ours", 3.0), series("C", 2.0, session="another")])
    assert [row[-1] for row in outcome_table(outcome)] == ["times C", "not comparable", ""]


def test_contenders_take_turns():
    """Round by round, after a warm-up that finds out how much fits into a round."""
    done = []

    def contender(name, us):
        def work(load):
            done.append((name, load.count))
            return {"us": us}

        return Entry({"bytes": 4}, name, work, Load(in_flight=8))

    measured = _measure.interleave([contender("a", 10.0), contender("b", 1000.0)], 8, 0.004)
    assert done[:4] == [("a", 24), ("a", 100), ("b", 24), ("b", 24)]
    rounds = [done[i : i + 2] for i in range(4, 20, 2)]
    assert all(sorted(one) == [("a", 400), ("b", 24)] for one in rounds)
    assert len({tuple(one) for one in rounds}) == 2, "always in the same order"
    assert len(done) == 20
    assert [one.contender for one in measured] == ["a", "b"]
    assert measured[0].session == measured[1].session
    assert _measure.ratio(measured[1], measured[0]) == 100.0


def test_a_contender_that_gives_up_is_left_out():
    """The others go on, and the reason is kept."""
    rounds = []

    def work(load):
        rounds.append(load.count)
        if len(rounds) > 3:
            raise ContenderError("no more")
        return {"us": 1000.0}

    entries = [
        Entry({"bytes": 4}, "a", lambda load: {"us": 1000.0}),
        Entry({"bytes": 4}, "b", work),
    ]
    skipped = {}
    measured = _measure.interleave(entries, 5, 0.012, skipped)
    assert [(one.contender, len(one.rounds)) for one in measured] == [("a", 5)]
    assert skipped == {"b": "gave up with {'bytes': 4}: no more"}
    assert len(rounds) == 4


def test_a_round_is_summed_up_in_percentiles():
    """The mean is of the whole time, the percentiles are of single inferences."""
    assert _measure.summary(200.0, list(range(100, 0, -1))) == {
        "us": 2.0,
        "p50": 51,
        "p90": 91,
        "p99": 100,
    }


def test_a_goal_is_a_floor_or_a_ceiling():
    """The limit itself is good enough."""
    assert Goal("", 1.5, 1.5).is_met
    assert not Goal("", 1.6, 1.5).is_met
    assert Goal("", 4.0, 4.0, is_floor=True).is_met
    assert not Goal("", 3.9, 4.0, is_floor=True).is_met


def test_a_goal_against_somebody_who_is_not_there_is_named():
    """It is neither met nor missed."""
    outcome = Outcome("", "C", [series("ours", 3.0)])
    value = _measure.if_measured(lambda: _measure.ratio(outcome.find("ours"), outcome.find("C")))
    assert value is None
    goal = Goal("ours, times C", value, 1.5)
    assert goal.is_met is None
    assert goal_table([goal])[1] == ["ours, times C", "", "at most 1.50", "not measured"]
    assert _measure.if_measured(lambda: outcome.find("ours").median("us")) == 3.0


def test_a_load_survives_its_line():
    """What is written to a child is what it reads."""
    load = Load("m", 3, 2, 4096, 1, 4, 32, 1000)
    assert load.line() == "m 3 2 4096 1 4 32 1000"
    assert Load.parse(load.line()) == load


def test_arrays_lie_on_a_page():
    """As they do in the C loop."""
    array = page_aligned(4096)
    assert array.ctypes.data % 4096 == 0
    assert array.tolist() == [1.0] * 1024
    assert Load(bytes=8, batched=1).array().shape == (1, 2)


def test_results_survive_their_file(results, tmp_path):
    """All of them, with their types."""
    results.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == results
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_the_file_says_which_goals_are_met(results, tmp_path):
    """Whoever reads it need not work it out."""
    goals = results.outcomes["times"].goals
    goals += [Goal("met", 1.0, 1.2), Goal("not there", None, 1.2)]
    results.write(tmp_path / "results.json")
    data = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    seen = [(goal["value"], goal["is_met"]) for goal in data["outcomes"]["times"]["goals"]]
    assert seen == [(1.5, False), (1.0, True), (None, None)]
    assert Results.read(tmp_path / "results.json") == results


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 0}', '{"format": 1}'])
def test_another_file_is_refused(text, tmp_path):
    """With its name."""
    file = tmp_path / "other.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ResultsError, match=r"other\.json"):
        Results.read(file)


def test_a_comparison_puts_ratios_side_by_side(results):
    """Each file's own: figures of two runs are never divided by each other."""
    outcome = results.outcomes["times"]
    later = Outcome(outcome.title, "C", [series("C", 10.0), series("ours", 12.0)])
    later.goals = [Goal("ours, times C", 1.2, 1.2), Goal("another", None, 1.0)]
    second = dataclasses.replace(results, outcomes={"times": later, "more": later})
    lines = [line.split() for line in compare(results, second).splitlines()]
    assert ["bytes", "4", "C", "4.00", "10.00"] in lines
    assert ["bytes", "4", "ours", "6.00", "1.50", "12.00", "1.20"] in lines
    assert ["ours,", "times", "C", "1.50", "not", "met", "1.20", "met"] in lines
    assert ["another", "not", "measured"] in lines
    assert ["more:", "only", "in", "the", "second"] in lines


def test_comparing_is_a_command(results, tmp_path, capsys):
    """`python -m benchmarks compare FIRST SECOND`."""
    file = tmp_path / "results.json"
    results.write(file)
    assert main(["compare", str(file), str(file)]) == 0
    assert "2026-01-01" in capsys.readouterr().out


@pytest.mark.parametrize("is_quick", [False, True])
def test_the_report_says_what_it_is_of(results, is_quick, tmp_path):
    """Date, machine, and whether the figures can be relied upon."""
    goals = results.outcomes["times"].goals
    goals += [Goal("met", 1.0, 1.2), Goal("not there", None, 1.2)]
    page = report(dataclasses.replace(results, quick=is_quick), tmp_path).read_text(
        encoding="utf-8"
    )
    assert "Measured 2026-01-01 00:00:00 UTC" in page
    assert "| cpu | a |" in page
    assert "1 of 3 met, 1 not measured." in page
    assert "| benchmark | goal | measured | wanted |  |" in page
    assert "| times | ours, times C | 1.50 | at most 1.20 | not met |" in page
    assert "| times | not there |  | at most 1.20 | not measured |" in page
    assert "| 4 | ours | 6.00 | 1.50 |" in page
    assert ("A quick run" in page) is is_quick


def test_a_table_in_markdown():
    """Heads, a ruler, rows."""
    assert markdown_table([["a", "b"], ["1", "2"]]) == "| a | b |\n|---|---|\n| 1 | 2 |"


@pytest.fixture
def benchmark(monkeypatch):
    """Makes benchmarks of a name and what their `main` does; the machine is looked at by no one."""
    monkeypatch.setattr(_results, "machine", lambda: {"cpu": "a"})

    def make(name, work):
        module = types.ModuleType(f"benchmarks.{name}")
        module.main = work
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(command, "NAMES", (*command.NAMES, name))

    return make


def fail(error):
    """Make a benchmark that raises this."""

    def work(options):
        raise error

    return work


def test_each_benchmark_is_written_when_it_is_over(benchmark, tmp_path):
    """Failed or not, and nothing of an earlier run stays."""
    file = tmp_path / "results.json"
    seen = []

    def look(options):
        seen.append(Results.read(file))
        outcome = Outcome("Times", "C", [series("C", 2.0)])
        outcome.versions = {"peer": "CPython 3.9"}
        return outcome

    benchmark("look", look)
    benchmark("fails", fail(ValueError("no")))
    file.write_text("of an earlier run", encoding="utf-8")
    assert main(["look", "fails", "look", "fails", "--out", str(tmp_path)]) == 1
    assert [(list(one.outcomes), one.failures) for one in seen] == [
        ([], {}),
        (["look"], {"fails": "ValueError('no')"}),
    ]
    last = Results.read(file)
    assert (list(last.outcomes), last.failures) == (["look"], {"fails": "ValueError('no')"})
    assert last.machine == {"cpu": "a", "peer": "CPython 3.9"}


def test_no_picture_is_no_failure(benchmark, tmp_path, monkeypatch, capsys):
    """The figures are written, and the next one has its turn."""
    benchmark("fine", lambda options: Outcome("Times", "C", [series("C", 2.0)]))
    monkeypatch.setattr(command, "draw", lambda outcome, out: fail(ValueError("broken"))(None))
    assert main(["fine", "--out", str(tmp_path)]) == 0
    assert "no pictures: broken\n" in capsys.readouterr().out


def test_an_interrupt_ends_the_run_in_one_line(benchmark, tmp_path, capsys):
    """The exit code is a shell's, and the file says of which benchmark there is nothing."""
    benchmark("stopped", fail(KeyboardInterrupt()))
    assert main(["stopped", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert Results.read(tmp_path / "results.json").failures == {"stopped": "interrupted"}


def test_a_task_that_is_interrupted_is_no_news():
    """Asyncio tells of it when it is deleted."""
    record = logging.makeLogRecord({})
    assert command._is_news(record)
    for error, is_news in ((ValueError(), True), (KeyboardInterrupt(), False)):
        record.exc_info = (type(error), error, None)
        assert command._is_news(record) is is_news


def test_a_signal_that_ends_the_process_lets_it_end_its_own():
    """The exit code is a shell's."""
    with pytest.raises(SystemExit) as raised:
        command._end(15, None)
    assert raised.value.code == 143


def test_a_folder_that_cannot_be_made_is_refused_first(benchmark, tmp_path, capsys):
    """And not when the first benchmark is over."""
    (tmp_path / "file").touch()
    benchmark("never", fail(AssertionError("it ran")))
    with pytest.raises(SystemExit) as raised:
        main(["never", "--out", str(tmp_path / "file" / "folder")])
    assert raised.value.code == 2
    assert "Not a directory" in capsys.readouterr().err


def test_a_small_run(library, tmp_path):
    """The C loop and ours take turns on the real server, and all is written."""
    options = Options(quick=True, peers=False)
    results = begin(options, tmp_path)
    assert Results.read(tmp_path / "results.json") == results
    assert results.machine["triton"].startswith("2.")
    run(results, ["latency"], options, tmp_path)
    assert results.failures == {}
    stored = Results.read(tmp_path / "results.json")
    assert stored == results
    assert stored.quick
    outcome = stored.outcomes["latency"]
    assert {one.contender for one in outcome.series} == {
        "C loop",
        "tritonffi infer",
        "tritonffi prepared infer",
    }
    assert {len(one.rounds) for one in outcome.series} == {3}
    assert all(one.median("p50") > 0 for one in outcome.series)
    assert set(outcome.skipped.values()) == {"not asked for"}
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["format"] == 1
