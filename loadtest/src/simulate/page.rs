//! Runs as one HTML page with plots, which needs nothing else.

use std::fmt::Write;

use super::{cells::Cell, summary::quantile};

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 260.0;
const EDGE: f64 = 44.0;
const COLOURS: [&str; 9] =
    ["#888888", "#b0a060", "#c07030", "#a050a0", "#5080c0", "#30a0a0", "#70a030", "#d02020", "#101010"];
/// Points of a scatter at most.
const POINTS_MAX: usize = 1_500;

/// The page.
#[must_use]
pub fn page(cells: &[Cell]) -> String {
    let mut html = String::from(
        "<!doctype html><meta charset=\"utf-8\"><title>loadtest simulate</title>\
         <style>body{font:14px sans-serif;margin:24px}table{border-collapse:collapse}td,th{padding:2px 10px;text-align:right}\
         svg{background:#fafafa;margin:8px}h2{margin-top:32px}</style><h1>A fleet in virtual time</h1>",
    );
    let mut rest = cells;
    while let Some(first) = rest.first() {
        let same = |cell: &&Cell| {
            (&cell.trace, cell.pods, cell.load.to_bits()) == (&first.trace, first.pods, first.load.to_bits())
        };
        let len = rest.iter().take_while(same).count();
        let (group, others) = rest.split_at(len);
        section(&mut html, first, group);
        rest = others;
    }
    html
}

fn section(html: &mut String, first: &Cell, group: &[Cell]) {
    let _ = write!(
        html,
        "<h2>{}: {} engines at {:.0} % of {:.1} requests/s</h2><table><tr><th>strategy<th>mean TTFT s<th>p50<th>p90<th>p99<th>cached\
         <th>regret<th>median error</tr>",
        escaped(&first.trace),
        first.pods,
        first.load * 100.0,
        first.capacity_per_s
    );
    for cell in group {
        let s = &cell.summary;
        let ratio =
            |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{:.1} %", value * 100.0));
        let _ = write!(
            html,
            "<tr><td>{:?}<td>{:.3}<td>{:.3}<td>{:.3}<td>{:.3}<td>{:.1} %<td>{}<td>{}</tr>",
            cell.strategy,
            s.ttft_mean_s,
            s.ttft_p50_s,
            s.ttft_p90_s,
            s.ttft_p99_s,
            s.hit_ratio * 100.0,
            ratio(s.regret_ratio),
            ratio(s.median_error_ratio)
        );
    }
    html.push_str("</table>");
    distributions(html, group);
    for cell in group.iter().filter(|cell| cell.summary.median_error_ratio.is_some()) {
        load_over_time(html, cell);
        predicted_and_actual(html, cell);
    }
}

/// Seconds on a logarithmic axis from 1 ms to 1,000 s, 0 to 1.
fn on_axis(seconds: f64) -> f64 {
    ((seconds.max(1e-3).log10() + 3.0) / 6.0).min(1.0)
}

fn begin(html: &mut String, title: &str) {
    let _ = write!(
        html,
        "<svg width=\"{WIDTH}\" height=\"{HEIGHT}\"><text x=\"{EDGE}\" y=\"16\">{title}</text>\
         <path d=\"M{EDGE},24V{0}H{1}\" fill=\"none\" stroke=\"#444\"/>",
        HEIGHT - EDGE,
        WIDTH - 8.0
    );
}

fn at(x: f64, y: f64) -> (f64, f64) {
    (EDGE + x * (WIDTH - EDGE - 8.0), (HEIGHT - EDGE) - y * (HEIGHT - EDGE - 24.0))
}

fn seconds_below(html: &mut String) {
    for (power, text) in [(-3, "1 ms"), (-2, "10 ms"), (-1, "100 ms"), (0, "1 s"), (1, "10 s"), (2, "100 s")] {
        let (x, y) = at(on_axis(10_f64.powi(power)), 0.0);
        let _ = write!(html, "<text x=\"{x:.0}\" y=\"{:.0}\" font-size=\"11\">{text}</text>", y + 16.0);
    }
}

fn distributions(html: &mut String, group: &[Cell]) {
    begin(html, "share of requests with a first token within");
    seconds_below(html);
    for (cell, colour) in group.iter().zip(COLOURS.iter().cycle()) {
        let mut ttft: Vec<f64> = cell.outcomes.all.iter().map(|outcome| outcome.ttft_us as f64 / 1e6).collect();
        ttft.sort_unstable_by(f64::total_cmp);
        let points = (0..=100).map(|percent| {
            let share = f64::from(percent) / 100.0;
            at(on_axis(quantile(&ttft, share)), share)
        });
        line(html, points, colour);
    }
    html.push_str("</svg><svg width=\"160\" height=\"260\">");
    for ((row, cell), colour) in (0..).zip(group).zip(COLOURS.iter().cycle()) {
        let y = 30 + row * 20;
        let _ = write!(html, "<rect x=\"4\" y=\"{}\" width=\"12\" height=\"3\" fill=\"{colour}\"/>", y - 5);
        let _ = write!(html, "<text x=\"22\" y=\"{y}\">{:?}</text>", cell.strategy);
    }
    html.push_str("</svg>");
}

fn load_over_time(html: &mut String, cell: &Cell) {
    begin(html, &format!("{:?}: requests in flight at each engine over time", cell.strategy));
    let samples = &cell.outcomes.load;
    let most = samples.iter().flat_map(|(_, pods)| pods).copied().max().unwrap_or(1).max(1);
    let last_us = samples.last().map_or(1, |(at_us, _)| *at_us).max(1);
    for (pod, colour) in (0..cell.pods).zip(COLOURS.iter().cycle()) {
        let points = samples.iter().map(|(at_us, pods)| {
            let load = pods.get(pod).copied().unwrap_or(0);
            at(*at_us as f64 / last_us as f64, f64::from(load) / f64::from(most))
        });
        line(html, points, colour);
    }
    let _ = write!(html, "<text x=\"4\" y=\"34\" font-size=\"11\">{most}</text></svg>");
}

fn predicted_and_actual(html: &mut String, cell: &Cell) {
    begin(html, &format!("{:?}: predicted (up) against actual (right) time to first token", cell.strategy));
    seconds_below(html);
    let step = (cell.outcomes.all.len() / POINTS_MAX).max(1);
    for outcome in cell.outcomes.all.iter().step_by(step) {
        if let Some((predicted_us, _)) = outcome.predicted_us {
            let (x, y) = at(on_axis(outcome.ttft_us as f64 / 1e6), on_axis(predicted_us as f64 / 1e6));
            let _ = write!(html, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"1\" fill=\"#d02020\"/>");
        }
    }
    line(html, [at(0.0, 0.0), at(1.0, 1.0)].into_iter(), "#444444");
    html.push_str("</svg>");
}

fn line(html: &mut String, points: impl Iterator<Item = (f64, f64)>, colour: &str) {
    html.push_str("<polyline fill=\"none\" points=\"");
    for (x, y) in points {
        let _ = write!(html, "{x:.1},{y:.1} ");
    }
    let _ = write!(html, "\" stroke=\"{colour}\"/>");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
