use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::encoding::parse_time;
use crate::clock::Timestamp;
use crate::envelope::{AttemptRecord, InvalidTrace, PoisonReason, PoisonRecord, TraceContext};
use crate::internal::as_count;
use crate::text::{all_bytes, shorten};

/// A member of an event, or its absence.
///
/// Numbers and booleans are also accepted as strings, because intermediaries convert extensions to strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Attribute<'a> {
    name: &'static str,
    value: Option<Value<'a>>,
}

/// The JSON of a value, as it is in the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Value<'a> {
    json: &'a str,
    /// Whether the JSON is a string without escapes, whose text is between its quotes.
    is_plain_string: bool,
}

macro_rules! attributes {
    ($($field:ident = $name:literal,)*) => {
        /// The members of an event that this crate reads, as they are in its text.
        #[derive(Debug, PartialEq, Eq)]
        pub(super) struct Attributes<'a> {
            $(pub(super) $field: Attribute<'a>,)*
        }

        impl<'a> Attributes<'a> {
            pub(super) fn absent() -> Self {
                Self { $($field: Attribute { name: $name, value: None },)* }
            }

            fn find(&mut self, name: &str) -> Option<&mut Attribute<'a>> {
                match name {
                    $($name => Some(&mut self.$field),)*
                    _ => None,
                }
            }
        }
    };
}

attributes! {
    spec_version = "specversion",
    id = "id",
    source = "source",
    kind = "type",
    time = "time",
    subject = "subject",
    group = "messagegroup",
    tracked = "messagetracked",
    content_type = "datacontenttype",
    version = "dataversion",
    queue_uri = "queueuri",
    request = "requestid",
    reply_to = "replyto",
    correlation = "correlationid",
    trace_parent = "traceparent",
    trace_state = "tracestate",
    unique_key = "uniquekey",
    failures = "failures",
    forgiven = "forgiven",
    last_error = "lasterror",
    last_chance = "lastchance",
    newer_since = "newersince",
    not_before = "notbefore",
    progress = "progress",
    earlier_attempts = "earlierattempts",
    poison_reason = "poisonreason",
    poison_error = "poisonerror",
    poison_attempts = "poisonattempts",
    poison_first = "poisonfirst",
    poison_last = "poisonlast",
    poison_queue = "poisonqueue",
    poison_id = "poisonid",
    poison_raw = "poisonraw",
    data = "data",
    data_base64 = "data_base64",
    data_ref = "dataref",
    data_encoding = "dataencoding",
    data_size = "datasize",
    data_digest = "datadigest",
    pack_items = "packitems",
    pack_deleted = "packdeleted",
}

impl<'a> Attributes<'a> {
    pub(super) fn of(members: &Members<'a>) -> Self {
        let mut attributes = Self::absent();
        for (name, value) in members.iter() {
            if let Some(attribute) = attributes.find(name) {
                attribute.set(Value::of(value.get()));
            }
        }
        attributes
    }

    /// The trace context, and why it is ignored, wholly or in part. An invalid trace context, whoever wrote it, is no
    /// reason not to deliver the message.
    pub(super) fn trace(&self) -> (Option<TraceContext>, Option<InvalidTrace>) {
        let parent = self.trace_parent.owned_trace();
        let trace = parent.and_then(|parent| parent.map(TraceContext::new).transpose());
        let trace = match trace {
            Ok(Some(trace)) => trace,
            Ok(None) => return (None, None),
            Err(invalid) => return (None, Some(invalid)),
        };
        let state = self.trace_state.owned_trace();
        let with_state = state.and_then(|state| match state {
            Some(state) => trace.clone().with_state(state),
            None => Ok(trace.clone()),
        });
        match with_state {
            Ok(trace) => (Some(trace), None),
            Err(invalid) => (Some(trace), Some(invalid)),
        }
    }

    pub(super) fn attempts(&self) -> Result<AttemptRecord, String> {
        Ok(AttemptRecord {
            failures: self.failures.count()?,
            forgiven: self.forgiven.count()?,
            last_error: self.last_error.owned()?,
            last_chance: self.last_chance.flag()?,
            newer_since: self.newer_since.time()?,
            not_before: self.not_before.time()?,
            progress: self.progress.owned()?,
            earlier: self.earlier_attempts.count()?,
        })
    }

    pub(super) fn poison(&self) -> Result<Option<PoisonRecord>, String> {
        let Some(reason) = self.poison_reason.text()? else {
            return Ok(None);
        };
        let first = self.poison_first.time()?.unwrap_or(Timestamp::UNIX_EPOCH);
        Ok(Some(PoisonRecord {
            reason: PoisonReason::parse(&reason),
            error: self.poison_error.owned()?,
            attempts: self.poison_attempts.count()?,
            first,
            last: self.poison_last.time()?.unwrap_or(first),
            queue: self.poison_queue.owned()?.unwrap_or_default(),
            storage_id: self.poison_id.owned()?.unwrap_or_default(),
            raw: self.poison_raw.flag()?,
        }))
    }
}

impl<'a> Attribute<'a> {
    /// The value as it is in the event, if the attribute is there.
    pub(super) fn raw(&self) -> Option<&'a str> {
        self.value.map(|value| value.json)
    }

    pub(super) fn set(&mut self, value: Value<'a>) {
        self.value = Some(value);
    }

    pub(super) fn set_any(&mut self, value: Option<Value<'a>>) {
        self.value = value;
    }

    /// The text of a string. Most attributes are absent, and cost no call.
    #[inline]
    pub(super) fn text(&self) -> Result<Option<Cow<'a, str>>, String> {
        self.value.map_or(Ok(None), |value| self.text_of(value))
    }

    fn text_of(&self, value: Value<'a>) -> Result<Option<Cow<'a, str>>, String> {
        #[derive(Deserialize)]
        struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

        let (value, is_plain_string) = (value.json, value.is_plain_string);
        if is_plain_string {
            return Ok(Some(Cow::Borrowed(&value[1..value.len() - 1])));
        }
        match serde_json::from_str::<Option<Text<'a>>>(value) {
            Ok(text) => Ok(text.map(|Text(text)| text)),
            Err(_) => Err(self.wrong(value, "a string")),
        }
    }

    pub(super) fn required(&self) -> Result<Cow<'a, str>, String> {
        let name = self.name;
        match self.text()? {
            Some(text) if !text.is_empty() => Ok(text),
            Some(_) => Err(format!("attribute `{name}` is empty")),
            None => Err(format!("it has no attribute `{name}`")),
        }
    }

    pub(super) fn owned(&self) -> Result<Option<String>, String> {
        Ok(self.filled()?.map(Cow::into_owned))
    }

    /// The text of an attribute of the trace context.
    fn owned_trace(&self) -> Result<Option<String>, InvalidTrace> {
        let wrong = |_| {
            let value = self.raw().unwrap_or_default();
            InvalidTrace::new(self.name, value, "is not a string".to_owned())
        };
        self.owned().map_err(wrong)
    }

    /// The text, or `None` if the value is no string: other systems have attributes of this name too.
    pub(super) fn owned_if_text(&self) -> Option<String> {
        self.owned().ok().flatten()
    }

    pub(super) fn parsed<T: FromStr<Err: fmt::Display>>(&self) -> Result<Option<T>, String> {
        let Some(text) = self.filled()? else {
            return Ok(None);
        };
        let parsed = text.parse().map(Some);
        parsed.map_err(|error| {
            let (name, text) = (self.name, clip(&text));
            format!("attribute `{name}` is {text:?}: {error}")
        })
    }

    pub(super) fn time(&self) -> Result<Option<Timestamp>, String> {
        match self.text()?.as_deref().and_then(parse_time) {
            Some(time) => Ok(Some(time)),
            None => self.parsed(),
        }
    }

    /// Returns a count, which has 32 bits on the wire; zero if it is missing.
    fn count(&self) -> Result<usize, String> {
        Ok(self.number()?.map_or(0, as_count))
    }

    pub(super) fn number(&self) -> Result<Option<u32>, String> {
        self.scalar("a whole number from 0 to 4294967295")
    }

    pub(super) fn flag(&self) -> Result<bool, String> {
        Ok(self.scalar("true or false")?.unwrap_or(false))
    }

    fn scalar<T: FromStr>(&self, allowed: &str) -> Result<Option<T>, String> {
        let Some(value) = self.raw() else {
            return Ok(None);
        };
        let text = match value {
            text if text.starts_with('"') => self.filled()?,
            "null" => None,
            plain => Some(Cow::Borrowed(plain)),
        };
        let parsed = text.map(|text| text.parse()).transpose();
        parsed.map_err(|_| self.wrong(value, allowed))
    }

    /// The text, unless it is empty.
    pub(super) fn filled(&self) -> Result<Option<Cow<'a, str>>, String> {
        Ok(self.text()?.filter(|text| !text.is_empty()))
    }

    fn wrong(&self, value: &str, allowed: &str) -> String {
        let name = self.name;
        if self.is_private() {
            return format!("attribute `{name}` is not {allowed}");
        }
        let value = clip(value);
        format!("attribute `{name}` is {value}, not {allowed}")
    }

    /// Whether the value is a key, a payload or a reference to one, or what the application has made of one, which is not
    /// quoted.
    fn is_private(&self) -> bool {
        matches!(
            self.name,
            "subject"
                | "messagegroup"
                | "data"
                | "data_base64"
                | "dataref"
                | "progress"
                | "lasterror"
                | "poisonerror"
        )
    }
}

impl<'a> Value<'a> {
    pub(super) fn of(json: &'a str) -> Self {
        let quoted = json.strip_prefix('"');
        Self {
            json,
            is_plain_string: quoted.is_some_and(|text| all_bytes(text, |byte| byte != b'\\')),
        }
    }

    /// The value of a string without escapes.
    pub(super) fn of_plain_string(json: &'a str) -> Self {
        Self {
            json,
            is_plain_string: true,
        }
    }
}

/// Returns the beginning of a text, for an error.
pub(super) fn clip(text: &str) -> Cow<'_, str> {
    shorten(text, 64)
}

/// The members of a JSON object in order, with raw values.
pub(crate) struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Members<'a> {
    /// Reads a JSON object to its end, also one with a duplicate member.
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(body)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), *value))
    }

    /// Returns the name of a duplicate member.
    pub(super) fn repeated(&self) -> Option<&str> {
        let mut names: Vec<&str> = self.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        let mut pairs = names.windows(2);
        pairs.find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members: Vec<(Cow<'de, str>, &'de RawValue)> = Vec::with_capacity(16);
        while let Some((Name(name), value)) = map.next_entry()? {
            members.push((name, value));
        }
        Ok(Members(members))
    }
}

/// Borrows where the text has no escapes.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);
