//! The chart of `sparsync bench --svg`: a bar for the median of each row, with a line from its fastest to its slowest run.

use super::json::BenchLine;

/// Where the bars begin, in pixels.
const LEFT: f64 = 180.0;
/// The length of the longest time, in pixels.
const LONGEST: f64 = 400.0;
const STYLE: &str = "\
text { font: 12px system-ui, sans-serif; fill: #1f2328 } .title { font-size: 15px; font-weight: 600 } \
rect { fill: #0969da } path { stroke: #59636e } svg { background: #ffffff }";

/// Returns the SVG file. `title` is what was measured.
pub fn svg(title: &str, rows: &[BenchLine]) -> String {
    let longest = rows.iter().map(|row| row.most_secs).fold(1e-9, f64::max);
    let pixels = |secs: f64| secs / longest * LONGEST;
    let height = 60 + 24 * rows.len();
    let title: String = title.chars().map(shown).collect();
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"790\" height=\"{height}\" role=\"img\">\n\
         <style>{STYLE}</style>\n<text class=\"title\" x=\"20\" y=\"30\">{title}</text>\n"
    );
    for (at, row) in rows.iter().enumerate() {
        let BenchLine {
            shape,
            algorithm,
            cache,
            workers,
            median_secs,
            least_secs,
            most_secs,
            bound_by,
            ..
        } = row;
        let shape = shape.map(|shape| format!("{shape}, ")).unwrap_or_default();
        let algorithm = algorithm
            .map(|algorithm| format!("{algorithm}, "))
            .unwrap_or_default();
        let y = 64 + 24 * at;
        let left = LEFT;
        out += &format!(
            "<text x=\"20\" y=\"{y}\">{shape}{algorithm}{cache}, workers: {workers}</text>\n\
             <rect x=\"{left}\" y=\"{}\" width=\"{:.1}\" height=\"12\"/>\n\
             <path d=\"M{:.1} {} H{:.1}\"/>\n\
             <text x=\"600\" y=\"{y}\">{median_secs:.4} s, bound by: {bound_by}</text>\n",
            y - 10,
            pixels(*median_secs),
            left + pixels(*least_secs),
            y - 4,
            left + pixels(*most_secs),
        );
    }
    out + "</svg>\n"
}

/// Returns a character as text of XML, which has no control characters.
fn shown(letter: char) -> String {
    match letter {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        control if control.is_control() => "\u{fffd}".to_owned(),
        '\u{fffe}' | '\u{ffff}' => "\u{fffd}".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_in_proportion_and_the_title_is_escaped() {
        let row = |cache, median_secs, most_secs| BenchLine {
            action: "scan",
            shape: (cache == "cold").then_some("deep"),
            algorithm: if cache == "cold" { Some("md5") } else { None },
            cache,
            workers: 2,
            runs: 3,
            entries: 1,
            bytes: 0,
            median_secs,
            least_secs: median_secs / 2.0,
            most_secs,
            user_secs: 0.0,
            system_secs: 0.0,
            bound_by: "metadata",
        };
        let chart = svg(
            "scan a<b>&\n",
            &[row("warm", 1.0, 1.0), row("cold", 2.0, 4.0)],
        );
        for part in [
            ">scan a&lt;b>&amp;\u{fffd}</text>",
            "warm, workers: 2</text>\n<rect x=\"180\" y=\"54\" width=\"100.0\"",
            "<path d=\"M230.0 60 H280.0\"/>",
            "deep, md5, cold, workers: 2</text>\n<rect x=\"180\" y=\"78\" width=\"200.0\"",
            "<path d=\"M280.0 84 H580.0\"/>",
            "2.0000 s, bound by: metadata</text>\n</svg>\n",
        ] {
            assert!(chart.contains(part), "{part}: {chart}");
        }
        assert!(svg("", &[]).ends_with("</text>\n</svg>\n"));
    }
}
