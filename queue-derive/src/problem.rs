use proc_macro2::TokenStream;
use quote::ToTokens;

use crate::ast::Mark;

/// Every error of the derive. A case in `tests/ui/fail` pins the text of each error.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    #[error(
        "a union cannot be a message, because nothing tells which of its fields is set; use a \
         struct or an enum"
    )]
    Union,
    #[error(
        "a message must own its data, so it cannot have lifetime parameters; own what `{0}` \
         borrows"
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
    #[error("unknown attribute `{0}`; a field takes `key` and `group`")]
    UnknownOnField(String),
    #[error("`{0}` belongs on the type; a field takes `key` and `group`")]
    TypeAttributeOnField(String),
    #[error("`{0}` belongs on a field; a type takes {1}")]
    MarkOnType(Mark, String),
    #[error(
        "a variant takes no attributes; put them on the enum, and `key` and `group` on the variant's fields"
    )]
    OnVariant,
    #[error("duplicate attribute `{0}`")]
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
    #[error("`{0}` takes no value, found {1}")]
    MarkValue(Mark, String),

    #[error(
        "{what} {kind:?} {problem}; allowed are 1 to 255 characters without white space or \
         control characters"
    )]
    Kind {
        what: &'static str,
        kind: String,
        problem: String,
    },
    #[error("alias {0:?} is the type's own kind; an alias must be a different kind")]
    AliasIsKind(String),
    #[error("duplicate alias {0:?}")]
    AliasTwice(String),
    #[error("`{attribute}`: {problem}")]
    QueueName {
        attribute: &'static str,
        problem: String,
    },
    #[error("`{name}` does not make a valid queue name: {problem}; set one with `queue = \"…\"`")]
    DefaultQueueName { name: String, problem: String },
    #[error(
        "queue name {queue:?} has {length} characters, which leaves no room for the suffix \
         `-poison`; allowed are 3 to 56, or up to 63 with `poison_queue = \"…\"`"
    )]
    NoRoomForPoison { queue: String, length: usize },
    #[error(
        "queue name {queue:?} has {length} characters, which leaves no room for the suffix `-history`; allowed with \
         `history` are 3 to 55"
    )]
    NoRoomForHistory { queue: String, length: usize },
    #[error(
        "`history_age` has no effect without `history`; add `history = 100_000`, or another number of entries"
    )]
    AgeWithoutHistory,
    #[error(
        "poison queue {0:?} is the type's own queue, so poison messages would be received again; \
         use a different queue"
    )]
    PoisonQueueIsQueue(String),
    #[error("`{name}` is {found:?}, which is not a duration: {problem}; allowed {allowed}")]
    NotADuration {
        name: &'static str,
        found: String,
        problem: humantime::DurationError,
        allowed: &'static str,
    },
    #[error("`{name}` is {found}; allowed {allowed}")]
    NotAllowed {
        name: &'static str,
        found: String,
        allowed: String,
    },
    #[error(
        "version 1 has no earlier version to upgrade from; set `version` to 2 or higher, or \
         remove `upgrade_from`"
    )]
    UpgradeToFirst,
    #[error(
        "`upgrade_from` has no effect with `wire = \"{0}\"`, because such a body carries no version; \
         remove one of the two"
    )]
    UpgradeOf(&'static str),
    #[error(
        "`compress` has no effect with `wire = \"{0}\"`, because such a body cannot say that it is compressed; \
         remove one of them"
    )]
    CompressOf(&'static str),
    #[error(
        "`packed` has no effect with `wire = \"{0}\"`, because such a body carries no message id; remove one of them"
    )]
    PackedOf(&'static str),
    #[error(
        "`tracked` has no effect with `wire = \"{0}\"`, because such a body carries no message id; remove one of them"
    )]
    TrackedOf(&'static str),
    #[error(
        "a `tracked` message travels in no pack, because it is found by itself; remove `packed` or `tracked`"
    )]
    TrackedInPack,
    #[error(
        "`wire = \"lines\"` needs a struct with fields, each of which is a line; use a struct, or another `wire`"
    )]
    NoLines,
    #[error(
        "`wire = \"lines\"` tells fields by their lines, which `#[serde({0})]` does not allow; remove one of the two"
    )]
    MovedLine(String),
    #[error(
        "`packed` has no effect with `poison_threshold = 1`, because the messages of a pack may be handled once more \
         after a crash; remove one of them"
    )]
    PackedOnce,

    #[error("`key_scope` has no effect without a key field; mark one with `#[message(key)]`")]
    ScopeWithoutKey,
    #[error(
        "`{0}` cannot be part of a {1}, because a float has no canonical form; use a type that \
         compares exactly, such as an integer or a string"
    )]
    FloatKey(String, Mark),
    #[error(
        "`{0}` cannot be part of a {1}, because integers in {1}s have up to 64 bits; use a string"
    )]
    WideKey(String, Mark),
    #[error(
        "`{0}` cannot be part of a {1}, because its items have no order and equal values would \
         make different {1}s; use a `BTreeSet` or a `Vec`"
    )]
    UnorderedKey(String, Mark),
    #[error(
        "a key field must be part of the payload, but `#[serde({0})]` leaves it out; remove one \
         of the two"
    )]
    SkippedKey(String),
    #[error("`group` needs events, because other bodies do not carry it; remove `wire` or `group`")]
    GroupWithoutEvent,
}

/// All errors of one item, rather than only the first.
#[derive(Default)]
pub(crate) struct Problems(Vec<syn::Error>);

impl Problems {
    /// Adds an error that underlines `tokens`.
    pub(crate) fn push(&mut self, tokens: impl ToTokens, problem: Problem) {
        self.0.push(syn::Error::new_spanned(tokens, problem));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns one `compile_error!` per error.
    pub(crate) fn to_compile_errors(&self) -> TokenStream {
        self.0.iter().map(syn::Error::to_compile_error).collect()
    }
}
