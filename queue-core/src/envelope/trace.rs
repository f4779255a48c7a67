/// The W3C trace context that a message carries from its sender to its handler.
///
/// A `TraceContext` is valid by construction: an invalid `traceparent` is refused.
///
/// ```
/// use queue_core::envelope::TraceContext;
///
/// let trace = TraceContext::new("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")?;
/// assert_eq!(trace.span_id(), 0x00f0_67aa_0ba9_02b7);
/// assert!(trace.is_sampled());
///
/// let error = TraceContext::new("4bf92f3577b34da6").unwrap_err();
/// assert!(error.to_string().starts_with("traceparent \"4bf92f3577b34da6\" has 16 bytes"));
/// # Ok::<(), queue_core::envelope::InvalidTrace>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct TraceContext {
    parent: Box<str>,
    state: Option<Box<str>>,
}

/// Text that is not a valid `traceparent` or `tracestate`.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {text:?} {problem}")]
pub struct InvalidTrace {
    what: &'static str,
    /// The text's beginning.
    text: String,
    problem: String,
}

crate::debug_as_text!(InvalidTrace);

/// The longest `tracestate`, in bytes: as much as every implementation must pass on.
pub const MAX_TRACE_STATE: usize = 512;

/// The length of a `traceparent` of version 00, and the least of later ones.
const PARENT: usize = 55;

const FORM: &str =
    "allowed is VERSION-TRACE-SPAN-FLAGS with 2, 32, 16 and 2 lower-case hexadecimal digits";

impl TraceContext {
    /// Creates a trace context from the value of a `traceparent` header.
    ///
    /// Later versions of `traceparent` than 00 may have more fields at the end, which are kept.
    ///
    /// # Errors
    /// [`InvalidTrace`] if the text does not have the form of a `traceparent`, its version is `ff`, or one of its ids
    /// is zero.
    pub fn new(parent: impl Into<String>) -> Result<Self, InvalidTrace> {
        let parent = parent.into();
        match parent_problem(&parent) {
            None => Ok(Self {
                parent: parent.into(),
                state: None,
            }),
            Some(problem) => Err(InvalidTrace::new("traceparent", &parent, problem)),
        }
    }

    /// Creates the trace context of a span. `flags` are the trace flags of `traceparent`: 1 if the trace is sampled.
    ///
    /// # Errors
    /// [`InvalidTrace`] if one of the ids is zero.
    pub fn of_span(trace_id: u128, span_id: u64, flags: u8) -> Result<Self, InvalidTrace> {
        Self::new(format!("00-{trace_id:032x}-{span_id:016x}-{flags:02x}"))
    }

    /// Sets the value of the `tracestate` header.
    ///
    /// # Errors
    /// [`InvalidTrace`] if the state is empty, longer than [`MAX_TRACE_STATE`], or has characters other than printable
    /// ASCII.
    pub fn with_state(mut self, state: impl Into<String>) -> Result<Self, InvalidTrace> {
        let state = state.into();
        let problem = match state.len() {
            0 => "is empty".to_owned(),
            length if length > MAX_TRACE_STATE => format!("has {length} bytes"),
            _ if state.bytes().all(|byte| matches!(byte, b' '..=b'~')) => {
                self.state = Some(state.into());
                return Ok(self);
            }
            _ => "has other characters".to_owned(),
        };
        let problem =
            format!("{problem}; allowed are 1 to {MAX_TRACE_STATE} printable ASCII characters");
        Err(InvalidTrace::new("tracestate", &state, problem))
    }

    /// The value of the `traceparent` header.
    #[must_use]
    pub fn parent(&self) -> &str {
        &self.parent
    }

    /// The value of the `tracestate` header.
    #[must_use]
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// The id of the trace.
    #[must_use]
    pub fn trace_id(&self) -> u128 {
        u128::from_str_radix(&self.parent[3..35], 16).expect(CHECKED)
    }

    /// The id of the span that submitted the message.
    #[must_use]
    pub fn span_id(&self) -> u64 {
        u64::from_str_radix(&self.parent[36..52], 16).expect(CHECKED)
    }

    /// The trace flags of `traceparent`.
    #[must_use]
    pub fn flags(&self) -> u8 {
        u8::from_str_radix(&self.parent[53..55], 16).expect(CHECKED)
    }

    /// Whether the sender may have recorded the trace.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags() & 1 == 1
    }
}

const CHECKED: &str = "`new` checks the digits";

impl InvalidTrace {
    pub(crate) fn new(what: &'static str, text: &str, problem: String) -> Self {
        let text = text.chars().take(60).collect();
        Self {
            what,
            text,
            problem,
        }
    }
}

fn parent_problem(text: &str) -> Option<String> {
    let Some((fixed, more)) = text.as_bytes().split_at_checked(PARENT) else {
        return Some(format!("has {} bytes; {FORM}", text.len()));
    };
    let digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let well_formed = fixed.iter().enumerate().all(|(at, byte)| match at {
        2 | 35 | 52 => *byte == b'-',
        _ => digit(byte),
    });
    let may_go_on = !fixed.starts_with(b"00") && more.starts_with(b"-");
    let printable = more.iter().all(|byte| matches!(byte, b' '..=b'~'));
    let zero = |part: &[u8]| part.iter().all(|digit| *digit == b'0');
    match () {
        () if !well_formed => Some(format!("has another form; {FORM}")),
        () if fixed.starts_with(b"ff") => {
            Some("has the version ff, which is not allowed".to_owned())
        }
        () if zero(&fixed[3..35]) => Some("has the trace id zero, which is not allowed".to_owned()),
        () if zero(&fixed[36..52]) => Some("has the span id zero, which is not allowed".to_owned()),
        () if !(more.is_empty() || may_go_on && printable) => {
            Some(format!("has more than {PARENT} characters; {FORM}"))
        }
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn only_a_traceparent_is_one() {
        let trace = TraceContext::new(VALID).expect("valid");
        let parts = (trace.trace_id(), trace.span_id(), trace.flags());
        assert_eq!(
            parts,
            (
                0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736,
                0x00f0_67aa_0ba9_02b7,
                1
            )
        );
        assert_eq!(TraceContext::of_span(parts.0, parts.1, parts.2), Ok(trace));
        let later = format!("cc{}-what-the-future-brings", &VALID[2..]);
        assert_eq!(TraceContext::new(&*later).expect("valid").parent(), later);
        for invalid in [
            "",
            "00",
            "none",
            &VALID[..54],
            &format!("{VALID}-more"),
            &format!("{VALID} "),
            &format!("cc{}more", &VALID[2..]),
            &format!("ff{}", &VALID[2..]),
            &VALID.to_uppercase(),
            &VALID.replace('-', "_"),
            &VALID.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &VALID.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &VALID.replace("4bf9", "+bf9"),
            // As many bytes as `VALID`.
            &VALID.replace("4bf9", "éé"),
            &"é".repeat(55),
        ] {
            assert!(TraceContext::new(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_tracestate_is_short_and_printable() {
        let with = |state: &str| TraceContext::new(VALID).expect("valid").with_state(state);
        assert_eq!(
            with("vendor=1, other=2").expect("valid").state(),
            Some("vendor=1, other=2")
        );
        assert!(with(&"x".repeat(MAX_TRACE_STATE)).is_ok());
        for invalid in ["", "a\n", "é", &"x".repeat(MAX_TRACE_STATE + 1)] {
            assert!(with(invalid).is_err(), "{invalid}");
        }
    }
}
