use std::fmt;

/// The form of a message's body.
///
/// ```
/// use queue_core::{MessageType, Wire};
///
/// // The producer writes JSON without an envelope.
/// const READING: MessageType = MessageType::new("sensor.reading", "readings").with_wire(Wire::Bare);
/// assert_eq!(READING.wire(), Wire::Bare);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Wire {
    /// A CloudEvents 1.0 event in JSON format.
    #[default]
    Event,
    /// The payload alone, for producers and consumers outside this framework. A type with bare bodies also accepts
    /// events.
    Bare,
    /// Text for programs that know no events, each part on its own line: the URI of the queue, the client id and the
    /// request id, then the struct's fields, in order. A type in lines also accepts events, with JSON.
    ///
    /// A field's value cannot contain a line feed or a carriage return. The payload of a type that implements
    /// [`Message`](crate::Message) by hand is the lines of its fields.
    Lines,
}

impl Wire {
    /// Whether the body is an event, which has room for the message's ids, version, attempts and more. Bare bodies and
    /// lines belong to programs outside this framework: they are never rewritten, packed or compressed.
    #[must_use]
    pub const fn is_event(self) -> bool {
        matches!(self, Self::Event)
    }

    /// The form's name in `#[message(wire = "…")]`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Bare => "bare",
            Self::Lines => "lines",
        }
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
