use proc_macro2::{Span, TokenStream};
use queue_core::InvalidName;
use quote::ToTokens;

/// Everything that the derive refuses. Each text is pinned by a case in `tests/ui/fail`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    #[error(
        "a union cannot be a message: nothing says which of its fields is set; use a struct or an \
         enum"
    )]
    Union,
    #[error(
        "a message outlives the call that made it, so it has no lifetime parameters: own what \
         `{0}` borrows"
    )]
    Lifetime(String),

    #[error("expected names and values in parentheses, as in `#[message(version = 2)]`")]
    NotAList,
    #[error("unknown attribute `{found}`{hint}; a type takes {allowed}")]
    UnknownOnType {
        found: String,
        hint: String,
        allowed: String,
    },
    #[error("unknown attribute `{0}`; a field takes `key`")]
    UnknownOnField(String),
    #[error("`{0}` belongs on the type; a field takes `key`")]
    TypeAttributeOnField(String),
    #[error("`key` belongs on a field; a type takes {0}")]
    KeyOnType(String),
    #[error(
        "a variant takes no attributes; put them on the enum, and `key` on the variant's fields"
    )]
    OnVariant,
    #[error("`{0}` is given twice; once is allowed")]
    Twice(String),
    #[error("`{name}` needs a value: {expected}")]
    NoValue {
        name: String,
        expected: &'static str,
    },
    #[error("`{name}` takes {expected}, not {found}")]
    WrongValue {
        name: String,
        expected: &'static str,
        found: String,
    },
    #[error("`key` takes no value, and here it has {0}")]
    KeyValue(String),

    #[error(
        "{what} {kind:?} {problem}; allowed are 1 to 255 characters, no white space or control \
         characters among them"
    )]
    Kind {
        what: &'static str,
        kind: String,
        problem: String,
    },
    #[error("alias {0:?} is the type's own kind; an alias is another kind")]
    AliasIsKind(String),
    #[error("alias {0:?} is listed twice; once is allowed")]
    AliasTwice(String),
    #[error("`{attribute}`: {problem}")]
    QueueName {
        attribute: &'static str,
        problem: InvalidName,
    },
    #[error("the name of `{name}` makes no queue name: {problem}; give one with `queue = \"…\"`")]
    DefaultQueueName { name: String, problem: InvalidName },
    #[error(
        "queue name {queue:?} has {length} characters, and with `-poison` behind it would have more \
         than 63; allowed are 3 to 56, or any queue name with `poison_queue = \"…\"` beside it"
    )]
    NoRoomForPoison { queue: String, length: usize },
    #[error(
        "poison queue {0:?} is the queue itself, so poison messages would come back for ever; \
         allowed is any other queue"
    )]
    PoisonQueueIsQueue(String),
    #[error("`{name}` is {found:?}, which is no duration: {problem}; allowed is {allowed}")]
    NotADuration {
        name: &'static str,
        found: String,
        problem: humantime::DurationError,
        allowed: &'static str,
    },
    #[error("`{name}` is {found:?}; allowed is {allowed}")]
    DurationOutOfRange {
        name: &'static str,
        found: String,
        allowed: &'static str,
    },
    #[error("`{name}` is {found}; allowed are whole numbers from 1 to {most}")]
    NumberOutOfRange {
        name: &'static str,
        found: String,
        most: u32,
    },
    #[error("`{name}` is {found:?}; allowed are {allowed}")]
    NotAChoice {
        name: &'static str,
        found: String,
        allowed: &'static str,
    },
    #[error(
        "version 1 is the first, so there is nothing to upgrade from; give a `version` from 2, or \
         leave `upgrade_from` out"
    )]
    UpgradeToFirst,

    #[error("`key_scope` does nothing without a key; mark a field with `#[message(key)]`")]
    ScopeWithoutKey,
    #[error(
        "`{0}` cannot be part of a key: a float has no canonical form; allowed is what compares \
         exactly, such as integers and strings"
    )]
    FloatKey(String),
    #[error(
        "`{0}` cannot be part of a key: its items have no order, so equal values would make \
         different keys; use a `BTreeSet` or a `Vec`"
    )]
    UnorderedKey(String),
    #[error(
        "a key field travels with its message, and `#[serde({0})]` leaves it out; remove one of the \
         two"
    )]
    SkippedKey(String),
}

/// What is wrong with one item: everything, rather than the first thing.
#[derive(Default)]
pub(crate) struct Problems(Vec<syn::Error>);

impl Problems {
    /// Records a problem with what `tokens` underlines.
    pub(crate) fn push(&mut self, tokens: impl ToTokens, problem: Problem) {
        self.0.push(syn::Error::new_spanned(tokens, problem));
    }

    /// As [`push`](Self::push), for what has no tokens of its own.
    pub(crate) fn push_at(&mut self, span: Span, problem: Problem) {
        self.0.push(syn::Error::new(span, problem));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One `compile_error!` for each problem.
    pub(crate) fn to_compile_errors(&self) -> TokenStream {
        self.0.iter().map(syn::Error::to_compile_error).collect()
    }
}
