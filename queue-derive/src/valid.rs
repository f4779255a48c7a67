use std::ops::RangeInclusive;
use std::time::Duration;

use queue_names::{HISTORY_SUFFIX, MAX_QUEUE_NAME, MAX_VERSION, POISON_SUFFIX, is_forbidden};
use quote::ToTokens;
use syn::ext::IdentExt as _;
use syn::{GenericParam, LitInt, LitStr};

use crate::ast::{Body, Input, Mark};
use crate::attr::{self, Setting};
use crate::key;
use crate::names::kebab_case;
use crate::problem::{Problem, Problems};

const MAX_KIND: usize = 255;
/// Longer queue names leave no room for the suffix of the poison queue.
const MAX_QUEUE: usize = MAX_QUEUE_NAME - POISON_SUFFIX.len();
/// Longer queue names leave no room for the suffix of the history.
const MAX_QUEUE_WITH_HISTORY: usize = MAX_QUEUE_NAME - HISTORY_SUFFIX.len();
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest time to live of a message.
const LONGEST_LIFE: Duration = Duration::from_secs(i32::MAX as u64);
const SECOND: Duration = Duration::from_secs(1);

/// The settings that follow from the attributes and the defaults.
pub(crate) struct Settings {
    pub(crate) kind: String,
    pub(crate) aliases: Vec<String>,
    pub(crate) version: u32,
    pub(crate) queue: String,
    pub(crate) wire: Wire,
    pub(crate) visibility_timeout: Option<Duration>,
    pub(crate) time_to_live: Option<Duration>,
    pub(crate) poison_threshold: Option<usize>,
    pub(crate) poison_queue: Option<String>,
    pub(crate) key_scope: KeyScope,
    pub(crate) compress: bool,
    pub(crate) packed: bool,
    pub(crate) tracked: bool,
    pub(crate) history: Option<usize>,
    pub(crate) history_age: Option<Duration>,
    pub(crate) has_groups: bool,
}

/// A variant of `Wire`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Wire {
    #[default]
    Event,
    Bare,
    Lines,
}

/// A variant of `KeyScope`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum KeyScope {
    #[default]
    Request,
    Global,
}

impl Wire {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Bare => "bare",
            Self::Lines => "lines",
        }
    }
}

impl Settings {
    /// Validates the attributes. The result is meaningful only if `problems` stays empty; otherwise it
    /// serves the placeholder impl.
    pub(crate) fn of(input: &Input<'_>, problems: &mut Problems) -> Self {
        check_generics(input, problems);
        key::check(input, problems);
        let attributes = &input.attributes;
        let kind = kind(input, problems);
        let (queue, poison_queue) = queues(input, problems);
        let version =
            number("version", attributes.version.given(), MAX_VERSION, problems).unwrap_or(1);
        if let Some(old) = attributes.upgrade_from.given()
            && version == 1
            && !matches!(attributes.version, Setting::Unreadable)
        {
            problems.push(old, Problem::UpgradeToFirst);
        }
        let wire = choice(
            "wire",
            attributes.wire.given(),
            "are \"event\", \"bare\" and \"lines\"",
            |text| {
                let mut forms = [Wire::Event, Wire::Bare, Wire::Lines].into_iter();
                forms.find(|wire| wire.as_str() == text)
            },
            problems,
        );
        if wire == Wire::Lines {
            check_lines(input, problems);
        }
        if let Some(old) = attributes.upgrade_from.given()
            && wire != Wire::Event
        {
            problems.push(old, Problem::UpgradeOf(wire.as_str()));
        }
        let compress = attributes.compress.given().is_some();
        if compress && wire != Wire::Event {
            problems.push(&input.original.ident, Problem::CompressOf(wire.as_str()));
        }
        let poison_threshold = number(
            "poison_threshold",
            attributes.poison_threshold.given(),
            u32::MAX,
            problems,
        );
        let poison_threshold = poison_threshold.and_then(|attempts| usize::try_from(attempts).ok());
        let packed = attributes.packed.given().is_some();
        if packed && wire != Wire::Event {
            problems.push(&input.original.ident, Problem::PackedOf(wire.as_str()));
        }
        if let (Some(field), false) = (input.marked(Mark::Group).next(), wire == Wire::Event) {
            problems.push(field.original, Problem::GroupWithoutEvent);
        }
        let tracked = attributes.tracked.given().is_some();
        if tracked && wire != Wire::Event {
            problems.push(&input.original.ident, Problem::TrackedOf(wire.as_str()));
        }
        if tracked && packed {
            problems.push(&input.original.ident, Problem::TrackedInPack);
        }
        let history = history(input, &queue, problems);
        if packed && poison_threshold == Some(1) {
            problems.push(&input.original.ident, Problem::PackedOnce);
        }
        Self {
            aliases: aliases(input, &kind, problems),
            kind,
            version,
            queue,
            poison_queue,
            wire,
            compress,
            packed,
            tracked,
            history,
            history_age: duration(
                "history_age",
                attributes.history_age.given(),
                SECOND..=LONGEST_LIFE,
                "is a duration from 1s to 2147483647s, such as \"30days\"; without `history_age`, the number of entries \
                 alone bounds a history",
                problems,
            ),
            has_groups: input.marked(Mark::Group).next().is_some(),
            poison_threshold,
            visibility_timeout: duration(
                "visibility_timeout",
                attributes.visibility_timeout.given(),
                SECOND..=7 * DAY,
                "is a duration from 1s to 7days, such as \"30s\" or \"2m\"",
                problems,
            ),
            time_to_live: duration(
                "time_to_live",
                attributes.time_to_live.given(),
                SECOND..=LONGEST_LIFE,
                "is a duration from 1s to 2147483647s, such as \"90m\" or \"7days\"; without `time_to_live`, messages \
                 never expire",
                problems,
            ),
            key_scope: choice(
                "key_scope",
                attributes.key_scope.given(),
                "are \"request\" and \"global\"",
                |text| match text {
                    "request" => Some(KeyScope::Request),
                    "global" => Some(KeyScope::Global),
                    _ => None,
                },
                problems,
            ),
        }
    }
}

/// The number of entries of the history, for whose queue there is a name.
fn history(input: &Input<'_>, queue: &str, problems: &mut Problems) -> Option<usize> {
    let attributes = &input.attributes;
    let entries = number("history", attributes.history.given(), u32::MAX, problems);
    if let Some(age) = attributes.history_age.given()
        && attributes.history.is_absent()
    {
        problems.push(age, Problem::AgeWithoutHistory);
    }
    if let Some(given) = attributes.history.given()
        && queue_names::check(queue).is_ok()
        && queue.len() > MAX_QUEUE_WITH_HISTORY
    {
        let (queue, length) = (queue.to_owned(), queue.len());
        problems.push(given, Problem::NoRoomForHistory { queue, length });
    }
    entries.and_then(|entries| usize::try_from(entries).ok())
}

fn check_generics(input: &Input<'_>, problems: &mut Problems) {
    for parameter in &input.original.generics.params {
        if let GenericParam::Lifetime(lifetime) = parameter {
            let name = lifetime.lifetime.to_string();
            problems.push(lifetime, Problem::Lifetime(name));
        }
    }
}

/// Checks that each field has a line, in the same place when sent and when received.
fn check_lines(input: &Input<'_>, problems: &mut Problems) {
    match &input.body {
        Body::Struct(fields) if !fields.is_empty() => {
            for field in fields {
                if let Some(moved) = attr::serde_moves_lines(&field.original.attrs) {
                    problems.push(&moved, Problem::MovedLine(moved.to_string()));
                }
            }
        }
        Body::Struct(_) | Body::Enum(_) => {
            problems.push(&input.original.ident, Problem::NoLines);
        }
        Body::Union => {}
    }
}

fn kind(input: &Input<'_>, problems: &mut Problems) -> String {
    let ident = &input.original.ident;
    let default = kebab_case(&ident.unraw().to_string());
    match &input.attributes.kind {
        Setting::Given(given) => {
            check_kind("kind", &given.value(), given, problems);
            given.value()
        }
        Setting::Unreadable => default,
        Setting::Absent => {
            check_kind("default kind", &default, ident, problems);
            default
        }
    }
}

fn aliases(input: &Input<'_>, kind: &str, problems: &mut Problems) -> Vec<String> {
    let mut aliases = Vec::new();
    for given in input
        .attributes
        .alias
        .given()
        .into_iter()
        .flat_map(|list| &list.0)
    {
        let alias = given.value();
        check_kind("alias", &alias, given, problems);
        if alias == kind {
            problems.push(given, Problem::AliasIsKind(alias));
        } else if aliases.contains(&alias) {
            problems.push(given, Problem::AliasTwice(alias));
        } else {
            aliases.push(alias);
        }
    }
    aliases
}

fn check_kind(what: &'static str, kind: &str, written: impl ToTokens, problems: &mut Problems) {
    let length = kind.chars().count();
    let unwanted = kind
        .char_indices()
        .find(|&(_, c)| c.is_whitespace() || is_forbidden(c));
    let problem = if kind.is_empty() {
        "is empty".to_owned()
    } else if length > MAX_KIND {
        format!("has {length} characters")
    } else if let Some((at, c)) = unwanted {
        format!("has {c:?} at byte {at}")
    } else {
        return;
    };
    let kind = match kind.char_indices().nth(40) {
        Some((at, _)) => format!("{}…", &kind[..at]),
        None => kind.to_owned(),
    };
    problems.push(
        written,
        Problem::Kind {
            what,
            kind,
            problem,
        },
    );
}

fn queues(input: &Input<'_>, problems: &mut Problems) -> (String, Option<String>) {
    let attributes = &input.attributes;
    let ident = &input.original.ident;
    let default = kebab_case(&ident.unraw().to_string());
    let (queue, written): (_, &dyn ToTokens) = match &attributes.queue {
        Setting::Given(given) => {
            check_queue("queue", given, problems);
            (given.value(), given)
        }
        Setting::Unreadable => (default, ident),
        Setting::Absent => {
            if let Err(problem) = queue_names::check(&default) {
                let name = ident.unraw().to_string();
                let problem = queue_names::refusal(&default, problem);
                problems.push(ident, Problem::DefaultQueueName { name, problem });
            }
            (default, ident)
        }
    };
    if attributes.poison_queue.is_absent()
        && queue_names::check(&queue).is_ok()
        && queue.len() > MAX_QUEUE
    {
        let problem = Problem::NoRoomForPoison {
            length: queue.len(),
            queue: queue.clone(),
        };
        problems.push(written, problem);
    }
    let poison = attributes.poison_queue.given();
    if let Some(given) = poison {
        check_queue("poison_queue", given, problems);
        if given.value() == queue {
            problems.push(given, Problem::PoisonQueueIsQueue(queue.clone()));
        }
    }
    (queue, poison.map(LitStr::value))
}

fn check_queue(attribute: &'static str, given: &LitStr, problems: &mut Problems) {
    let name = given.value();
    if let Err(problem) = queue_names::check(&name) {
        let problem = queue_names::refusal(&name, problem);
        problems.push(given, Problem::QueueName { attribute, problem });
    }
}

fn number(
    name: &'static str,
    given: Option<&LitInt>,
    most: u32,
    problems: &mut Problems,
) -> Option<u32> {
    let given = given?;
    match given.base10_parse() {
        Ok(number) if (1..=most).contains(&number) => Some(number),
        _ => {
            let problem = Problem::NotAllowed {
                name,
                found: given.to_string(),
                allowed: format!("are whole numbers from 1 to {most}"),
            };
            problems.push(given, problem);
            None
        }
    }
}

fn duration(
    name: &'static str,
    given: Option<&LitStr>,
    range: RangeInclusive<Duration>,
    allowed: &'static str,
    problems: &mut Problems,
) -> Option<Duration> {
    let given = given?;
    let found = given.value();
    let problem = match humantime::parse_duration(&found) {
        Ok(duration) if range.contains(&duration) => return Some(duration),
        Ok(_) => Problem::NotAllowed {
            name,
            found: format!("{found:?}"),
            allowed: allowed.to_owned(),
        },
        Err(problem) => Problem::NotADuration {
            name,
            found,
            problem,
            allowed,
        },
    };
    problems.push(given, problem);
    None
}

fn choice<T: Default>(
    name: &'static str,
    given: Option<&LitStr>,
    allowed: &'static str,
    parse: fn(&str) -> Option<T>,
    problems: &mut Problems,
) -> T {
    let Some(given) = given else {
        return T::default();
    };
    let found = given.value();
    parse(&found).unwrap_or_else(|| {
        let problem = Problem::NotAllowed {
            name,
            found: format!("{found:?}"),
            allowed: allowed.to_owned(),
        };
        problems.push(given, problem);
        T::default()
    })
}
