use std::fmt;

/// The most examples of a problem that a report holds.
const EXAMPLES: usize = 5;

/// What a [`FileCheck`](crate::FileCheck) has found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// The number of queues.
    pub queues: u64,
    /// The number of messages that could be read, also of queues that were deleted or cleared and whose messages are not
    /// removed yet.
    pub messages: u64,
    /// The number of attachments.
    pub attachments: u64,
    /// The number of recorded results and values.
    pub results: u64,
    /// What is wrong, by kind, in the order in which it was found. Empty if nothing is.
    pub problems: Vec<Problem>,
}

/// All that is wrong in one way.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// In which way.
    pub kind: ProblemKind,
    /// How often it was found.
    pub count: u64,
    /// The first five of them: message ids, names of queues, or what SQLite says. No keys and no payloads.
    pub examples: Vec<String>,
}

/// What can be wrong with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProblemKind {
    /// SQLite finds a page, an index or the list of free pages damaged.
    Page,
    /// Rows of a table cannot be read. What belongs to them is not checked.
    Unreadable,
    /// A table, an index, a view or a trigger of the queues is missing.
    Missing,
    /// The name or the metadata of a queue is invalid, or it exists and is to be removed.
    Queue,
    /// The recorded number of a queue's messages is wrong, or that they expire is not recorded.
    Count,
    /// A message or its place in the schedule belongs to a queue that does not exist.
    NoQueue,
    /// A message is not in the schedule, so it is never received.
    NotScheduled,
    /// The schedule names a message that is not there. It is received as damaged.
    NoMessage,
    /// The schedule names a message twice, or with another queue or expiry than its own.
    Schedule,
    /// A body does not match its checksum. The message is received as damaged.
    Body,
    /// A time is impossible: out of range, an expiry before the put, or hidden for longer than a message can be.
    Time,
    /// An attachment is missing, incomplete, damaged or miscounted, or belongs to no message.
    Attachment,
    /// The deleted items of a pack belong to no message.
    Items,
    /// A recorded result or value does not match its checksum, or its key is not text.
    Result,
}

impl CheckReport {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }

    /// The number of problems of this kind.
    #[must_use]
    pub fn count(&self, kind: ProblemKind) -> u64 {
        let mut problems = self.problems.iter();
        let found = problems.find(|problem| problem.kind == kind);
        found.map_or(0, |problem| problem.count)
    }

    /// Adds a problem.
    pub(crate) fn add(&mut self, kind: ProblemKind, example: impl FnOnce() -> String) {
        let found = self.problems.iter().position(|found| found.kind == kind);
        let at = found.unwrap_or_else(|| {
            self.problems.push(Problem {
                kind,
                count: 0,
                examples: Vec::new(),
            });
            self.problems.len() - 1
        });
        let problem = &mut self.problems[at];
        problem.count += 1;
        if problem.examples.len() < EXAMPLES {
            problem.examples.push(example());
        }
    }
}

/// What is wrong, and with what effect.
impl fmt::Display for ProblemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Page => "damaged pages or indexes",
            Self::Unreadable => "rows that cannot be read",
            Self::Missing => "missing tables",
            Self::Queue => "invalid queues",
            Self::Count => "wrong counts of messages",
            Self::NoQueue => "messages of queues that do not exist",
            Self::NotScheduled => {
                "messages that are never received, because they are not in the schedule"
            }
            Self::NoMessage => "places in the schedule whose messages are missing",
            Self::Schedule => "places in the schedule that do not fit their messages",
            Self::Body => "bodies that do not match their checksums",
            Self::Time => "impossible times",
            Self::Attachment => "attachments that are not whole, or not counted right",
            Self::Items => "deleted items of no message",
            Self::Result => "damaged results",
        })
    }
}

/// The kind, the number, and the examples.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            count,
            examples,
        } = self;
        write!(f, "{count} {kind}: {}", examples.join("; "))?;
        if *count > examples.len() as u64 {
            f.write_str("; …")?;
        }
        Ok(())
    }
}
