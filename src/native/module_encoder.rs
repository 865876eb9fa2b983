//! Encodes the messages of a daemon: logs what they report, and changes paths into those in the module.

use crate::error::Error;
use crate::fs::trusted_path;
use crate::options::Output;
use crate::proto::{DirListing, Encoder, Message, Roots};
use crate::report::event::{Event, Problem};
use crate::session::module_log::{ModuleLog, logged_name};
use std::sync::Arc;

/// The encoder of a daemon that serves a module.
pub struct ModuleEncoder {
    pub inner: Box<dyn Encoder + Send>,
    pub log: Arc<ModuleLog>,
    /// The client's options for output, which decide which entries the log names.
    pub output: Output,
}

impl ModuleEncoder {
    /// Logs problems and notes. Returns the problems as the client gets them, or `None` if there is nothing to log.
    fn logged(&self, problems: &[Problem], notes: &[Vec<u8>]) -> Option<Vec<Problem>> {
        for note in notes {
            (self.log.put)(note);
        }
        let problems: Vec<_> = problems
            .iter()
            .map(|problem| self.log.problem(problem.clone()))
            .collect();
        if problems.is_empty() {
            return None;
        }
        Some(problems)
    }

    /// Logs what a message reports. Returns the message to send in its place, if it is another one.
    fn changed(&self, message: &Message) -> Option<Message> {
        Some(match message {
            Message::Roots(roots) => {
                let problems = self.logged(&roots.problems, &roots.notes)?;
                Message::Roots(Box::new(Roots {
                    problems,
                    ..(**roots).clone()
                }))
            }
            Message::Dir(listing) => {
                let problems = self.logged(&listing.problems, &listing.notes)?;
                Message::Dir(Box::new(DirListing {
                    problems,
                    ..(**listing).clone()
                }))
            }
            Message::More {
                list,
                subs,
                problems,
                notes,
                last,
            } => {
                let problems = self.logged(problems, notes)?;
                Message::More {
                    list: list.clone(),
                    subs: subs.clone(),
                    problems,
                    notes: notes.clone(),
                    last: *last,
                }
            }
            Message::Unsent {
                file,
                lane,
                problem: Some(problem),
            } => Message::Unsent {
                file: *file,
                lane: *lane,
                problem: Some(self.log.problem(problem.clone())),
            },
            // A receiver also reports what came with the listings of its client.
            Message::Event(Event::Problem(problem)) if !problem.is_of_peer => {
                Message::Event(Event::Problem(self.log.problem(problem.clone())))
            }
            Message::Event(Event::Note(note)) => {
                (self.log.put)(note);
                return None;
            }
            Message::Event(Event::Item(item)) => {
                if let Some(line) = logged_name(item, &self.output) {
                    (self.log.put)(&line);
                }
                return None;
            }
            Message::Fail {
                exit,
                message,
                role,
            } => {
                let lines =
                    trusted_path::lines(message).map(|line| (self.log.in_module)(line.to_vec()));
                Message::Fail {
                    exit: *exit,
                    message: lines.collect::<Vec<_>>().join(&b'\n'),
                    role,
                }
            }
            _ => return None,
        })
    }
}

impl Encoder for ModuleEncoder {
    fn encode(&mut self, message: &Message, out: &mut Vec<u8>) -> Result<(), Error> {
        let changed = self.changed(message);
        self.inner.encode(changed.as_ref().unwrap_or(message), out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Dialect as _, Native};
    use crate::report::event::Weight;
    use parking_lot::Mutex;

    /// A receiver also reports what came with the listings of its client, which is not about files of the module.
    #[test]
    fn only_problems_of_this_end_are_in_the_module() {
        const LINE: &[u8] = b"rsync: [sender] link_stat \"x\" failed";
        for (is_of_peer, sent, count) in [(false, &b"in module"[..], 1), (true, LINE, 0)] {
            let logged = Arc::<Mutex<Vec<Vec<u8>>>>::default();
            let log = ModuleLog {
                in_module: Box::new(|_| b"in module".to_vec()),
                put: Box::new({
                    let logged = logged.clone();
                    move |line| logged.lock().push(line.to_vec())
                }),
            };
            let inner = Box::new(Native::new(1));
            let output = Output::default();
            let mut encoder = ModuleEncoder {
                inner,
                log: Arc::new(log),
                output,
            };
            let mut out = Vec::new();
            let problem = Problem {
                is_of_peer,
                ..Problem::new(LINE, Weight::Failed)
            };
            encoder
                .encode(&Message::Event(Event::Problem(problem)), &mut out)
                .unwrap();
            let decoded = Native::new(1).decode(&mut &out[..]).unwrap();
            let Some(Message::Event(Event::Problem(problem))) = decoded else {
                panic!("{decoded:?}")
            };
            assert_eq!(problem.line, sent);
            assert_eq!(logged.lock().len(), count);
        }
    }
}
