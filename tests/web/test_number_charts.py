"""The charts of numbers: steps in, a figure and its words out."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from console import number_charts
from console.number_charts import Marker, NumberChart
from jobs.core import histograms, windows
from jobs.metrics.reading import Figures
from jobs.queues.reading import DepthPoint

NOW = datetime(2026, 11, 12, 3, 12, 20, tzinfo=UTC)
HOUR = windows.named("1h", now=NOW)
# The window begins at 02:13; what fails begins in its step 29, at 02:42; steps 12 to 17 are not known.
FAILS_AT = 29
GAP = range(12, 18)


def figures(number: int, *, latency: float = 0.0) -> Figures:
    fails = number >= FAILS_AT
    found = Figures(done=560 if fails else 650, retried=505 if fails else 9, dead=121 if fails else 0)
    if latency:
        found.add_packed(histograms.pack({histograms.bucket_of(latency): 100}), b"")
    return found


def steps(*, latency: bool = False) -> list[Figures | None]:
    return [
        None
        if number in GAP
        else figures(number, latency=(4.8 if number >= FAILS_AT else 1.9) if latency else 0)
        for number in range(60)
    ]


def points(levels: list[int | None]) -> list[DepthPoint | None]:
    return [None if level is None else DepthPoint(level, level, level / 10, 1) for level in levels]


def lines(chart: NumberChart) -> list[dict[str, Any]]:
    """Return the traces that are no bands and no words."""
    return [
        trace
        for trace in chart.figure["data"]
        if trace.get("fill") != "toself" and trace.get("mode") != "text"
    ]


def bands(chart: NumberChart) -> list[tuple[str, str]]:
    return [
        (trace["x"][0][11:16], trace["x"][1][11:16])
        for trace in chart.figure["data"]
        if trace.get("fill") == "toself"
    ]


def test_throughput_says_what_changed_and_when_and_what_is_missing():
    chart = number_charts.throughput(HOUR, steps(), now=NOW)

    assert chart.sentence == (
        "Retries rose from 9 to 505 a minute at 02:42; done fell 14 %. 6 min missing from 02:25."
    )
    assert chart.unit == "attempts /min by outcome"
    assert chart.rows[0] == ("03:11", ["121", "505", "560"])
    assert chart.columns == ["Died /min", "Retried /min", "Done /min"]


def test_a_gap_is_a_hatched_band_and_no_line_goes_through_it():
    chart = number_charts.throughput(HOUR, steps(), now=NOW)

    assert bands(chart) == [("02:24", "02:31")]
    for trace in lines(chart):
        times = [text[11:16] for text in trace["x"]]
        assert not any("02:25" <= each <= "02:30" for each in times)
        assert None not in trace["y"]
    # What is stacked on each other is of one side of the gap.
    assert {trace["stackgroup"] for trace in lines(chart)} == {"s0", "s1"}


def test_the_minute_that_has_just_begun_is_not_drawn_as_a_fall():
    chart = number_charts.throughput(HOUR, [figures(number) for number in range(60)], now=NOW)

    assert max(trace["x"][-1] for trace in lines(chart)) == "2026-11-12 03:11:00"


def test_a_long_step_that_has_begun_counts_for_the_minutes_that_have_passed():
    window = windows.named("24h", now=NOW)
    now = window.end - timedelta(minutes=10)
    found: list[Figures | None] = [Figures(done=1500)] * (len(window.steps) - 1) + [Figures(done=500)]

    chart = number_charts.throughput(window, found, now=now)

    assert chart.rows[0][1][-1] == "100"
    assert chart.sentence == "Steady: 100 attempts a minute."


def test_numbers_that_go_up_and_down_are_not_said_to_be_steady():
    found: list[Figures | None] = (
        [None] * 54 + [Figures(done=each) for each in (69, 400, 80, 94, 70)] + [None]
    )

    sentence = number_charts.throughput(HOUR, found, now=NOW).sentence

    assert sentence.startswith("Between 69 and 400 attempts a minute, 143 on average.")


def test_one_burst_among_quiet_minutes_is_not_said_to_be_steady():
    found: list[Figures | None] = [Figures(done=200 if number == 30 else 0) for number in range(60)]

    sentence = number_charts.throughput(HOUR, found, now=NOW).sentence

    assert sentence.startswith("Between 0 and 200 attempts a minute")


def test_a_p99_that_fell_within_minutes_is_not_said_to_have_stayed():
    found: list[Figures | None] = [None] * 56
    for seconds in (5.2, 5.8, 0.19):
        each = Figures(done=100)
        each.add_packed(histograms.pack({histograms.bucket_of(seconds): 100}), b"")
        found.append(each)

    sentence = number_charts.latency(HOUR, [*found, None], now=NOW).sentence

    assert "stayed" not in sentence
    assert sentence.startswith("p99 between 190 ms and 5.8 s")


def test_percentiles_are_named_at_their_end_and_gaps_stay_gaps():
    chart = number_charts.latency(HOUR, steps(latency=True), now=NOW)

    assert chart.sentence.startswith("p99 rose from 1.9 s to 4.7 s at 02:42.")
    assert [label["text"] for label in chart.figure["layout"]["annotations"]] == [
        "p50 4.7 s",
        "p95 4.7 s",
        "p99 4.7 s",
    ]
    for trace in lines(chart):
        assert [trace["y"][number] for number in GAP] == [None] * 6
        assert trace["connectgaps"] is False
    assert chart.unit == "seconds from publish to start"


def test_names_at_the_end_do_not_stand_on_each_other():
    chart = number_charts.latency(HOUR, steps(latency=True), now=NOW)

    scale = chart.figure["layout"]["yaxis"]["range"][1]
    pixels = sorted(
        label["y"] / scale * 172 + label["yshift"] for label in chart.figure["layout"]["annotations"]
    )
    assert all(above - below >= 12.9 for below, above in itertools.pairwise(pixels))


def test_names_at_the_top_of_the_plot_are_not_cut():
    found = [figures(number, latency=5.8) for number in range(60)]

    chart = number_charts.latency(HOUR, found, now=NOW)

    scale = chart.figure["layout"]["yaxis"]["range"][1]
    pixels = [label["y"] / scale * 172 + label["yshift"] for label in chart.figure["layout"]["annotations"]]
    assert max(pixels) <= 174
    assert all(above - below >= 12.9 for below, above in itertools.pairwise(sorted(pixels)))


def test_what_did_not_happen_has_no_line_on_top_of_what_did():
    chart = number_charts.throughput(HOUR, [Figures(done=200) for _ in range(60)], now=NOW)

    assert {trace["name"]: trace["line"]["width"] for trace in lines(chart)} == {
        "Done": 1.75,
        "Retried": 0,
        "Died": 0,
    }


@pytest.mark.parametrize(
    ("seconds", "unit", "tick"),
    [
        (0.02, "milliseconds", "ms"),
        (0.7, "milliseconds", "ms"),
        (3.0, "seconds", "s"),
        (900.0, "minutes", "min"),
        (50_000.0, "hours", "h"),
    ],
)
def test_durations_are_drawn_in_the_unit_they_are_told_in(seconds, unit, tick):
    found: list[Figures | None] = []
    for _ in range(60):
        each = Figures(done=1)
        each.add_packed(histograms.pack({histograms.bucket_of(seconds): 1}), b"")
        found.append(each)

    chart = number_charts.latency(HOUR, found, now=NOW)

    assert chart.unit.startswith(unit)
    assert chart.figure["layout"]["yaxis"]["ticktext"][-1].endswith(f" {tick}")


def test_the_failure_rate_is_per_cent_of_those_finished_with_the_limit_if_it_is_near():
    near = number_charts.failure_rate(HOUR, steps(), limit=0.25, now=NOW)
    far = number_charts.failure_rate(HOUR, steps(), limit=0.9, now=NOW)

    assert near.sentence == "It rose from 0.0 % to 17.8 % at 02:42."
    assert near.rows[0] == ("03:11", ["17.8 %", "121", "681"])
    assert "alert limit 25 %" in near.json
    assert "alert limit" not in far.json
    assert far.figure["layout"]["yaxis"]["range"][1] <= 30


def test_a_window_without_finished_jobs_says_so():
    chart = number_charts.failure_rate(HOUR, [Figures(retried=2)] * 60, now=NOW)

    assert chart.sentence == "No job finished in this time."


def test_of_many_queues_the_fullest_are_drawn_and_the_others_are_counted():
    series = {f"queue-{number}": points([number * 10] * 60) for number in range(9)}

    chart = number_charts.depth(HOUR, series, now=NOW)

    assert chart.columns == ["queue-8", "queue-7", "queue-6", "queue-5", "queue-4"]
    assert chart.sentence == "360 waiting now, 360 an hour ago. 4 queues that hold less are not drawn."


def test_a_peak_within_a_long_step_is_drawn_and_what_waits_now_is_the_end():
    window = windows.named("24h", now=NOW)
    found: list[DepthPoint | None] = [DepthPoint(0, 0, None, 1)] * (len(window.steps) - 1)
    found[40] = DepthPoint(0, 4_000, 900.0, 1)
    series = {"critical": [*found, DepthPoint(0, 25, 200.0, 1)]}

    depth = number_charts.depth(window, series, now=NOW)
    oldest = number_charts.oldest_age(window, series, now=NOW)

    assert max(int(row[1][0].replace(",", "")) for row in depth.rows) == 4_000
    assert depth.sentence == "0 waiting now, 0 24 hours ago."
    assert oldest.sentence == "Nothing waits."


def test_what_was_not_counted_an_hour_ago_is_not_told_of_then():
    depth = number_charts.depth(HOUR, {"critical": points([None] * 40 + [0] * 10 + [65] * 10)}, now=NOW)
    once = number_charts.depth(HOUR, {"critical": points([None] * 59 + [65])}, now=NOW)

    assert depth.sentence == "65 waiting now, 0 at 02:53."
    assert once.sentence == "65 waiting now."


def test_what_was_counted_last_long_ago_is_not_now():
    series = {"critical": points([5] * 30 + [None] * 30)}

    assert number_charts.depth(HOUR, series, now=NOW).sentence == "5 waiting at last, 5 an hour ago."
    assert (
        number_charts.oldest_age(HOUR, series, now=NOW).sentence
        == "At last the oldest waited on critical, for 500 ms."
    )


def test_dead_letters_stand_above_the_deaths_a_minute_with_their_limit():
    levels: list[int | None] = [507] * FAILS_AT + [507 + 121 * number for number in range(1, 61 - FAILS_AT)]

    chart = number_charts.dead_letters(HOUR, levels, steps(), limit=20, now=NOW)

    assert chart.sentence == "From 507 to 4,258. Deaths passed their limit at 02:42."
    bars = next(trace for trace in chart.figure["data"] if trace["type"] == "bar")
    assert bars["yaxis"] == "y2"
    # A minute without a death has no bar, one that is not known neither.
    assert [bars["y"][number] for number in (0, 14, 40)] == [None, None, 121]
    assert "alert limit 20 /min" in chart.json


def test_limits_are_shown_as_they_were_typed():
    queues = {"critical": points([5_000] * 60)}

    rate = number_charts.failure_rate(HOUR, steps(), limit=7.25 / 100, now=NOW)
    growth = number_charts.dead_letters(HOUR, [507] * 60, steps(), limit=20.5, now=NOW)
    depth = number_charts.depth(HOUR, queues, limit=1_000.5, now=NOW)
    oldest = number_charts.oldest_age(HOUR, queues, limit=605, now=NOW)

    for chart, words in ((rate, "7.25 %"), (growth, "20.5 /min"), (depth, "1,000.5"), (oldest, "10 min 5 s")):
        assert f"alert limit {words}" in chart.json


def test_deployments_are_dotted_lines_and_names_that_would_overlap_are_left_out():
    markers = [Marker(NOW - timedelta(minutes=minutes), f"deploy v{minutes}") for minutes in (40, 39, 5, 90)]

    layout = number_charts.throughput(
        HOUR, steps(), markers=sorted(markers, key=lambda m: m.at), now=NOW
    ).figure["layout"]

    assert len([shape for shape in layout["shapes"] if shape["line"].get("dash") == "dot"]) == 3
    names = [label["text"] for label in layout["annotations"]]
    assert names == ["deploy v40", "deploy v5"]


def test_names_of_queues_cannot_give_plotly_tags_or_templates():
    series = {'<a href="x">%{y}</a>\u202e': points([3] * 60)}

    chart = number_charts.depth(HOUR, series, now=NOW)

    text = json.dumps(chart.figure)
    assert "<a" not in text
    assert "%{y}<" not in text
    assert "\\u202e" not in text


def test_nothing_known_is_no_chart():
    nothing: list[Figures | None] = [None] * 60

    for draw in (
        number_charts.throughput,
        number_charts.latency,
        number_charts.runtime,
        number_charts.failure_rate,
    ):
        chart = draw(HOUR, nothing, now=NOW)
        assert (chart.is_known, chart.sentence, chart.rows) == (False, "", [])
    assert not number_charts.depth(HOUR, {}, now=NOW).is_known
    assert not number_charts.dead_letters(HOUR, [None] * 60, nothing, now=NOW).is_known


@pytest.mark.parametrize("name", list(windows.NAMED))
@pytest.mark.parametrize("second", [0, 1, 59])
def test_every_window_draws_at_any_second(name, second):
    now = NOW.replace(second=second)
    window = windows.named(name, now=now)
    found = [figures(number, latency=0.5) for number in range(len(window.steps))]
    series = {"critical": points(list(range(len(window.steps))))}

    for chart in (
        number_charts.throughput(window, found, now=now),
        number_charts.latency(window, found, now=now),
        number_charts.failure_rate(window, found, now=now),
        number_charts.depth(window, series, now=now),
        number_charts.dead_letters(window, [3] * len(found), found, now=now),
    ):
        assert chart.is_known
        assert chart.sentence
        assert "NaN" not in chart.json


def test_a_chart_of_one_queue_does_not_name_it_at_its_line():
    def ends(*queues: str) -> list[str]:
        chart = number_charts.depth(HOUR, {queue: points([3] * 60) for queue in queues}, now=NOW)
        return [label["text"] for label in chart.figure["layout"]["annotations"]]

    assert ends("critical") == ["3"]
    assert sorted(ends("critical", "low")) == ["critical 3", "low 3"]


def test_for_a_narrow_plot_long_names_are_cut_and_none_becomes_a_tag():
    series = {"customers-of-europe": points([3] * 60), "a<b>&c<d>e": points([2] * 60)}

    labels = number_charts.depth(HOUR, series, now=NOW).figure["layout"]["annotations"]

    assert {label["short"] for label in labels} == {"customer… 3", "a&lt;b&gt;&amp;c&lt;d… 2"}


def test_the_words_of_a_gap_at_the_end_are_marked_for_plots_that_have_no_room_for_them():
    chart = number_charts.depth(
        HOUR, {"critical": points([3] * 20 + [None] * 10 + [3] * 15 + [None] * 15)}, now=NOW
    )
    several = number_charts.depth(
        HOUR,
        {"critical": points([3] * 20 + [None] * 10 + [3] * 15 + [None] * 15), "low": points([1] * 60)},
        now=NOW,
    )

    def words(one: NumberChart) -> list[str]:
        return [trace["meta"] for trace in one.figure["data"] if trace.get("mode") == "text"]

    assert words(chart) == ["gap", "last gap"]
    assert words(several) == []
