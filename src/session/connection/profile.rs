//! What a session costs: messages, bytes, round trips, and the time spent waiting.

use crate::report::Traffic;
use crate::work::clock::Since;
use std::collections::BTreeMap;
use std::time::Duration;

/// The costs of a session.
pub(super) struct Profile {
    begun: Since,
    /// By message name.
    messages: BTreeMap<&'static str, CostRow>,
    /// How often a message was received after one was sent.
    round_trips: u64,
    has_sent: bool,
    /// Where time was spent, before and after the link moved. [`WAITS`] has the names.
    pub(super) waited: [[Duration; 4]; 2],
}

/// The costs of one kind of message.
#[derive(Default)]
struct CostRow {
    /// How many were sent, and their bytes; how many were received, and their bytes.
    counts: [u64; 4],
    /// When the first and the last of them were sent or received, since the start of the session.
    when: Option<[Duration; 2]>,
}

/// Index in [`CostRow::counts`].
const SENT: usize = 0;
/// Index in [`CostRow::counts`].
const RECEIVED: usize = 2;

/// What a thread can wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// A grant of the peer.
    Window,
    /// Room in the buffer.
    Buffer,
    /// The link to accept data.
    Writing,
    /// The link to deliver data.
    Reading,
}

/// The names of [`Wait`], in its order.
const WAITS: [&str; 4] = ["window", "buffer", "writing", "reading"];

impl Profile {
    /// Creates the profile of a session that begins now.
    pub(super) fn new() -> Profile {
        let begun = Since::now();
        Profile {
            begun,
            messages: BTreeMap::new(),
            round_trips: 0,
            has_sent: false,
            waited: Default::default(),
        }
    }

    /// Records a message that was sent.
    pub(super) fn sent(&mut self, name: &'static str, bytes: u64) {
        self.has_sent = true;
        self.add(name, SENT, bytes);
    }

    /// Records a message that was received.
    pub(super) fn received(&mut self, name: &'static str, bytes: u64) {
        self.round_trips += u64::from(std::mem::take(&mut self.has_sent));
        self.add(name, RECEIVED, bytes);
    }

    fn add(&mut self, name: &'static str, way: usize, bytes: u64) {
        let now = self.begun.elapsed();
        let row = self.messages.entry(name).or_default();
        row.counts[way] += 1;
        row.counts[way + 1] += bytes;
        row.when = Some([row.when.map_or(now, |[first, _]| first), now]);
    }

    /// Returns the costs so far as a table for `end`: single values first, then a row for each kind of message.
    /// `moved`: when the link moved.
    ///
    /// Several threads work at once, so their waits need not add up to the elapsed time.
    pub(super) fn table(&self, end: &str, traffic: Traffic, moved: Option<Since>) -> Vec<String> {
        let ms = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1000.0);
        let one = |name: &str, value: String| format!("profile: {end:<6} {name:<14} {value:>11}");
        let mut lines = vec![
            one("ms", ms(self.begun.elapsed())),
            one("round-trips", self.round_trips.to_string()),
            one("bytes-written", traffic.sent_bytes.to_string()),
            one("bytes-read", traffic.received_bytes.to_string()),
        ];
        let [before, after] = self.waited;
        let both = before
            .iter()
            .zip(after)
            .map(|(before, after)| *before + after);
        lines.extend(
            WAITS
                .iter()
                .zip(both)
                .map(|(name, time)| one(&format!("ms-{name}"), ms(time))),
        );
        // When the link moved, and the waits since then, in ms.
        if let Some(since) = moved {
            lines.push(one(
                "moved-ms",
                ms(self.begun.elapsed().saturating_sub(since.elapsed())),
            ));
            lines.extend(
                WAITS
                    .iter()
                    .zip(after)
                    .map(|(name, time)| one(&format!("moved-{name}"), ms(time))),
            );
        }
        let row = |name: &str, columns: [String; 6]| {
            let [sent, sent_bytes, received, received_bytes, first, last] = columns;
            format!(
                "profile: {end:<6} {name:<14} {sent:>11} {sent_bytes:>12} {received:>9} {received_bytes:>12} {first:>10} {last:>10}"
            )
        };
        let heads = ["sent", "bytes", "received", "bytes", "first-ms", "last-ms"];
        lines.push(row("message", heads.map(str::to_owned)));
        for (name, CostRow { counts, when }) in &self.messages {
            let [first, last] = when.unwrap_or_default().map(ms);
            let [sent, sent_bytes, received, received_bytes] =
                counts.map(|count| count.to_string());
            lines.push(row(
                name,
                [sent, sent_bytes, received, received_bytes, first, last],
            ));
        }
        lines
    }
}
