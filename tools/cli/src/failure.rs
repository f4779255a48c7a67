use std::io;
use std::process::ExitCode;

use queue_runtime::error::Operation;
use queue_runtime::name::InvalidName;
use queue_runtime::receive::{AcceptError, AcceptErrorKind};
use queue_runtime::send::SubmitErrorKind;
use queue_runtime::service::{ConnectError, ConnectErrorKind};
use queue_runtime::service::{DeleteError, redrive::RedriveError};
use queue_runtime::{Error, ErrorKind, SubmitError};

use crate::output::{count, escape};

/// A `Result` whose error is a [`Failure`].
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why a command did not do what was asked: what was tried, and what helps.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    text: String,
    help: Option<String>,
    /// The kind of the storage's error.
    kind: Option<ErrorKind>,
}

/// The exit codes. The guide and the help list them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The storage or a file failed.
    Failed = 1,
    /// The command line is wrong. Clap uses the same code.
    Usage = 2,
    /// There is no such queue, message, schedule, result or file.
    NotFound = 3,
    /// The storage cannot do what was asked.
    Unsupported = 4,
    /// Nobody has agreed to what destroys something.
    Declined = 5,
    /// A part was not done, or a check has found something.
    Partial = 6,
    /// The reader of the output has gone, as `head` does, which is not reported.
    BrokenPipe = 141,
}

impl Failure {
    pub(crate) fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self {
            exit,
            text: text.into(),
            help: None,
            kind: None,
        }
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(Exit::Usage, text)
    }

    /// The error of a file of an export, which names the file.
    pub(crate) fn of_export(error: io::Error) -> Self {
        let (exit, help) = match error.kind() {
            io::ErrorKind::AlreadyExists => (
                Exit::Failed,
                "name another file, or append to the file by --append",
            ),
            io::ErrorKind::InvalidData => (Exit::Usage, "name another file"),
            io::ErrorKind::NotFound => (Exit::NotFound, "check the folder"),
            _ => return Self::new(Exit::Failed, error.to_string()),
        };
        Self::new(exit, error.to_string()).with_help(help)
    }

    /// The error of reading standard input.
    pub(crate) fn input(error: &io::Error) -> Self {
        Self::new(Exit::Failed, format!("failed to read the input: {error}"))
    }

    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Says which part the failure is about, such as a line of a file.
    pub(crate) fn of(mut self, part: &str) -> Self {
        self.text = format!("{part}: {}", self.text);
        self
    }

    /// Says that something was done before the failure.
    pub(crate) fn after(mut self, done: &str) -> Self {
        if self.exit != Exit::BrokenPipe {
            self.exit = Exit::Partial;
        }
        self.text = format!("{} (before that, {done})", self.text);
        self
    }

    /// Says how many things were done before the failure, if any.
    pub(crate) fn after_part(self, done: usize, noun: &str, what: &str) -> Self {
        let was = if done == 1 { "was" } else { "were" };
        match done {
            0 => self,
            _ => self.after(&format!("{} {was} {what}", count(done, noun))),
        }
    }

    /// Adds what helps if the storage is a service: a file has no host, and asks for no credentials.
    pub(crate) fn of_service(self) -> Self {
        match self.kind {
            Some(ErrorKind::Denied) if self.help.is_none() => {
                self.with_help("check the credentials in the URL, and what they allow")
            }
            Some(ErrorKind::Unreachable | ErrorKind::Timeout) if self.help.is_none() => {
                self.with_help("check the host in the URL, and that it can be reached from here")
            }
            _ => self,
        }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn is(&self, exit: Exit) -> bool {
        self.exit == exit
    }

    /// Writes the failure to standard error, and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let Self {
            exit, text, help, ..
        } = self;
        if exit != Exit::BrokenPipe {
            anstream::eprintln!("\u{1b}[1;31merror\u{1b}[0m: {}", escape(&text));
            if let Some(help) = help {
                anstream::eprintln!("  \u{1b}[1mhelp\u{1b}[0m: {}", escape(&help));
            }
        }
        ExitCode::from(exit as u8)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::advised(&error, format!("{error:?}"))
    }
}

impl Failure {
    /// Returns what a storage's error means, with this text.
    fn advised(error: &Error, text: String) -> Self {
        let (exit, help) = advice(error.kind());
        Self {
            exit,
            text,
            help: help.map(str::to_owned),
            kind: Some(error.kind()),
        }
    }
}

fn advice(kind: ErrorKind) -> (Exit, Option<&'static str>) {
    match kind {
        ErrorKind::QueueNotFound => (
            Exit::NotFound,
            Some("`queues list` lists the queues, and `queues create QUEUE` makes one"),
        ),
        ErrorKind::MessageNotFound => (
            Exit::NotFound,
            Some("the message was deleted, completed or moved, or has expired"),
        ),
        ErrorKind::ReceiptMismatch => (
            Exit::Partial,
            Some(
                "the message has changed since it was read: a consumer has received it; run the command again",
            ),
        ),
        ErrorKind::Unsupported => (Exit::Unsupported, None),
        ErrorKind::Throttled => (
            Exit::Failed,
            Some("the storage has too much to do; run the command again later"),
        ),
        _ => (Exit::Failed, None),
    }
}

impl From<AcceptError> for Failure {
    fn from(error: AcceptError) -> Self {
        match error.kind {
            AcceptErrorKind::Storage(error) => error.into(),
            AcceptErrorKind::QueueNotFound => {
                let missing = Error::new(ErrorKind::QueueNotFound, Operation::Receive);
                missing.with_queue(&error.queue).into()
            }
            _ => Self::new(Exit::Failed, format!("{error:?}")),
        }
    }
}

impl<M> From<SubmitError<M>> for Failure {
    fn from(error: SubmitError<M>) -> Self {
        let text = format!("{error:?}");
        match error.kind {
            SubmitErrorKind::Storage(error) => Self::advised(&error, text),
            _ => Self::new(Exit::Failed, text),
        }
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        match error.kind {
            ConnectErrorKind::Storage(error) => error.into(),
            ConnectErrorKind::Url { .. } | ConnectErrorKind::MissingFeature { .. } => {
                Self::usage(format!("{error:?}"))
            }
            _ => Self::new(Exit::Failed, format!("{error:?}")),
        }
    }
}

impl From<RedriveError> for Failure {
    fn from(error: RedriveError) -> Self {
        let mut text = format!("{error:?}");
        if error.unknown > 0 {
            text = format!(
                "{text} (of {} further ones it is not known whether they were moved)",
                error.unknown
            );
        }
        Self::advised(&error.error, text)
    }
}

impl From<DeleteError> for Failure {
    fn from(error: DeleteError) -> Self {
        let failure = Self::advised(&error.error, format!("{:?}", error.error));
        match error.unknown {
            0 => failure,
            unknown => Self {
                exit: Exit::Partial,
                text: format!(
                    "{} (of {unknown} further messages it is not known whether they were deleted; they are in the file)",
                    failure.text
                ),
                ..failure
            },
        }
    }
}

impl From<InvalidName> for Failure {
    fn from(error: InvalidName) -> Self {
        Self::usage(error.to_string())
    }
}

/// An error of the output: where a file fails, its name belongs to the text.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::new(Exit::BrokenPipe, ""),
            _ => Self::new(Exit::Failed, format!("failed to write the output: {error}")),
        }
    }
}
